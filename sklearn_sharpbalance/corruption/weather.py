"""Weather: snow, frost, fog and bright light."""

import numpy as np

from sklearn_sharpbalance.corruption._constants import family, severity_constants
from sklearn_sharpbalance.corruption._filters import (
    motion_blur_planar,
    separable,
    to_uint8,
    zoom_matrix,
)
from sklearn_sharpbalance.corruption._random import ImageRng
from sklearn_sharpbalance.corruption._textures import frost_textures, plasma

__all__ = ["brightness", "fog", "frost", "snow"]

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def _grey(images: np.ndarray) -> np.ndarray:
    """Return the luma of (N, H, W, C) as float32 (N, H, W, 1)."""
    values = images.astype(np.float32)
    if images.shape[-1] == 1:
        return values
    return (values @ LUMA)[..., None]


def snow(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Add streaks of snow flakes to a brightened picture.

    Parameters
    ----------
    images : ndarray of shape (N, H, W, C), uint8
        Clean pictures.
    severity : int in 1..5
        How strong; the constants depend on the size of the pictures.
    rng : ImageRng of length N
        One random stream per picture.

    Returns
    -------
    ndarray of shape (N, H, W, C), uint8
        Corrupted pictures.

    Notes
    -----
    Normal noise is enlarged, set to zero below a threshold and blurred along a random
    direction within 45 degrees of the vertical; this layer, and the layer rotated by
    180 degrees, are added. The motion blur is that of :func:`motion_blur`; the
    published datasets used ImageMagick.
    """
    mean, std, zoom, threshold, radius, sigma, keep = severity_constants(
        "snow", images, severity
    )
    height, width = images.shape[1:3]
    layer = rng.normal((height, width)) * np.float32(std) + np.float32(mean)
    layer = separable(layer, zoom_matrix(height, zoom), zoom_matrix(width, zoom))
    layer[layer < threshold] = 0
    layer = np.floor(np.clip(layer, 0, 1) * 255)  # 8 bits in the published generator
    angles = rng.uniform(low=-135, high=-45)
    layer = motion_blur_planar(layer[:, None], angles, radius, sigma)[:, 0]
    flakes = (layer + layer[:, ::-1, ::-1])[..., None]  # (N, H, W, 1)
    pale = np.maximum(images, _grey(images) * np.float32(1.5) + np.float32(127.5))
    pale *= np.float32(1 - keep)
    return to_uint8(np.float32(keep) * images + pale + flakes)


def frost(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Add ice crystals, as on a window in front of the camera.

    Parameters and the return value are those of :func:`snow`.

    Notes
    -----
    The published generators add a random crop of one of five photographs of frost.
    These photographs are not part of this package. It generates five textures of
    needle-like crystals (the same on every machine), and crops and adds them with the
    published weights. So accuracies on ``frost`` are not comparable with those on the
    published files; read these with :class:`CorruptionFiles`.
    """
    keep, weight = severity_constants("frost", images, severity)
    height, width, channels = images.shape[1:]
    textures = frost_textures(family(height, width))  # (T, S, S, 3)
    side = textures.shape[1]
    which = rng.integers(0, len(textures))
    corner = rng.integers(0, side, (2,))  # any corner, since textures are periodic
    ys = (corner[:, :1] + np.arange(height)) % side  # (N, H)
    xs = (corner[:, 1:] + np.arange(width)) % side  # (N, W)
    ice = textures[which[:, None, None], ys[:, :, None], xs[:, None, :]]
    if channels == 1:
        ice = _grey(ice)
    return to_uint8(np.float32(keep) * images + np.float32(weight) * ice)


def fog(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    r"""Add patches of fog from a plasma fractal.

    Parameters and the return value are those of :func:`snow`.

    Notes
    -----
    :math:`(x + c\,p)\, m / (m + c)` with the fractal :math:`p` in [0, 1] and the
    picture's largest value :math:`m`, all in units of 255.
    """
    weight, decay = severity_constants("fog", images, severity)
    height, width = images.shape[1:3]
    patches = plasma(rng, max(height, width), decay)[:, :height, :width, None]
    brightest = images.max(axis=(1, 2, 3), keepdims=True).astype(np.float32)
    out = images + np.float32(255 * weight) * patches
    out *= brightest / (brightest + np.float32(255 * weight))
    return to_uint8(out)


def brightness(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    r"""Raise the value (of hue, saturation, value) by a constant.

    Parameters and the return value are those of :func:`snow`; ``rng`` is not used.

    Notes
    -----
    With hue and saturation kept, a pixel is multiplied by :math:`v' / v`, where
    :math:`v` is its largest channel and :math:`v' = \min(v + 255c, 255)`; a black pixel
    turns grey.
    """
    lift = np.float32(255 * severity_constants("brightness", images, severity))
    value = images.max(axis=-1, keepdims=True).astype(np.float32)
    factor = np.minimum(value + lift, 255) / np.maximum(value, 1)
    return to_uint8(np.where(value > 0, images * factor, lift))
