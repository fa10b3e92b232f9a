"""Noise of the sensor, and digital corruptions such as JPEG and pixelation."""

import io

import numpy as np
from PIL import Image

from sklearn_sharpbalance.corruption._base import ImageRng, severity_constants, to_uint8
from sklearn_sharpbalance.corruption.blur import bilinear, gaussian_matrix, separable


def gaussian_noise(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    r"""Add independent normal noise to every channel of every pixel.

    Notes
    -----
    :math:`x + 255\,c\,z` with :math:`z \sim N(0, 1)`.
    """
    scale = severity_constants("gaussian_noise", images, severity)
    noisy = rng.normal(images.shape[1:])
    noisy *= np.float32(255 * scale)
    noisy += images
    return to_uint8(noisy)


def shot_noise(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    r"""Replace values by Poisson counts of photons.

    Notes
    -----
    :math:`255\,k / c` with :math:`k \sim \mathrm{Poisson}(c\,x / 255)`.
    """
    photons = severity_constants("shot_noise", images, severity)
    counts = rng.poisson(images * (photons / 255))
    counts *= np.float32(255 / photons)
    return to_uint8(counts)


def impulse_noise(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Set a fraction of the values to 0 or 255, half each (salt and pepper).

    Channels are changed independently, as in the published datasets.
    """
    fraction = severity_constants("impulse_noise", images, severity)
    draw = rng.uniform(images.shape[1:])
    out = images.copy()
    out[draw < fraction] = 255
    out[draw < fraction / 2] = 0
    return out


def contrast(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    r"""Move the values of every channel towards their mean.

    Notes
    -----
    :math:`\bar x + c\,(x - \bar x)` with the mean of each image and channel.
    """
    scale = severity_constants("contrast", images, severity)
    mean = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    return to_uint8(
        images * np.float32(scale) + (mean * (1 - scale)).astype(np.float32)
    )


def pixelate(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Shrink with a box filter and enlarge again."""
    fraction = severity_constants("pixelate", images, severity)
    height, width = images.shape[1:3]
    small = int(width * fraction), int(height * fraction)
    box = Image.Resampling.BOX

    def one(image: Image.Image) -> Image.Image:
        return image.resize(small, box).resize((width, height), box)

    return _each_image(images, one)


def jpeg_compression(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Encode as JPEG of low quality and decode.

    The encoder is Pillow's, as for the published datasets; versions of it may round
    differently.
    """
    quality = severity_constants("jpeg_compression", images, severity)

    def one(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _each_image(images, one)


def _each_image(images: np.ndarray, function) -> np.ndarray:
    """Apply a function of Pillow images to each of (N, H, W, 1 or 3)."""
    out = np.empty_like(images)
    squeeze = images.shape[-1] == 1
    for source, target in zip(images, out):
        result = function(Image.fromarray(source[..., 0] if squeeze else source))
        target[...] = np.asarray(result).reshape(target.shape)
    return out


def elastic_transform(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Shear the image, then displace its pixels by a smooth random field.

    Notes
    -----
    Three points of the image are moved at random, which defines an affine map; then
    smoothed uniform noise displaces each pixel. Both steps interpolate linearly.
    OpenCV, which did the first step for the published datasets, rounds positions to
    1/32 pixel; this does not. From severity 1 to 5 the shear decreases and the
    displacement increases, so the distance from the clean image may decrease.
    """
    side = min(images.shape[1:3])
    strength, sigma, shear = (
        side * value
        for value in severity_constants("elastic_transform", images, severity)
    )
    height, width = images.shape[1:3]
    ys, xs = np.mgrid[:height, :width].astype(np.float32)
    inverse = _random_affine(rng, height, width, shear)[..., None, None]  # (N, 2, 3)
    out = bilinear(
        images.astype(np.float32),
        inverse[:, 1, 0] * xs + inverse[:, 1, 1] * ys + inverse[:, 1, 2],
        inverse[:, 0, 0] * xs + inverse[:, 0, 1] * ys + inverse[:, 0, 2],
        "mirror",
    )
    if strength > 0:
        drift = rng.uniform((2, height, width), low=-1, high=1)
        smooth = [gaussian_matrix(n, sigma, "reflect", 3.0) for n in (height, width)]
        drift = separable(drift, *smooth) * np.float32(strength)
        out = bilinear(out, ys + drift[:, 1], xs + drift[:, 0], "reflect")
    return to_uint8(out)


def _random_affine(rng: ImageRng, height: int, width: int, shear: float) -> np.ndarray:
    """Return maps from (x, y, 1) of the new image to (x, y) of the old, (N, 2, 3)."""
    centre = np.array([width // 2, height // 2])
    third = min(height, width) // 3
    points = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])  # (3, 2)
    moved = points + rng.uniform((3, 2), low=-shear, high=shear)  # (N, 3, 2)
    ones = np.ones((*moved.shape[:2], 1))
    solved = np.linalg.solve(np.concatenate([moved, ones], axis=2), points[None] + 0.0)
    return solved.swapaxes(1, 2).astype(np.float32)
