"""Weather: snow, frost, fog and bright light."""

from functools import lru_cache, partial

import numpy as np

from sklearn_sharpbalance.corruption._base import (
    ImageRng,
    family,
    severity_constants,
    to_uint8,
)
from sklearn_sharpbalance.corruption.blur import (
    motion_blur_planar,
    separable,
    zoom_matrix,
)

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
# Side of a texture and width of its largest crystals, in pixels. The published
# generators shrink their photographs to 0.2 and 0.3 for small images.
FROST_SIZES = {"cifar": (256, 8.0), "tiny": (384, 12.0), "imagenet": (512, 40.0)}
N_FROST_TEXTURES = 5
FROST_TINT = np.array([0.88, 0.96, 1.0])  # ice is a little blue


def _grey(images: np.ndarray) -> np.ndarray:
    """Return the luma of (N, H, W, C) as float32 (N, H, W, 1)."""
    values = images.astype(np.float32)
    if images.shape[-1] == 1:
        return values
    return (values @ LUMA)[..., None]


def snow(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Add streaks of snow flakes to a brightened image.

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

    Notes
    -----
    :math:`(x + c\,p)\, m / (m + c)` with the fractal :math:`p` in [0, 1] and the
    image's largest value :math:`m`, all in units of 255.
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


def plasma(rng: ImageRng, side: int, decay: float) -> np.ndarray:
    """Return diamond-square fractals in [0, 1], one per stream, (N, S, S).

    S is ``side`` rounded up to a power of two. The amplitude is divided by ``decay``
    each time the step is halved; larger is smoother.
    """
    size = 1 << (side - 1).bit_length()
    noise = rng.uniform((size * size,), low=-1, high=1)
    field = np.zeros((len(rng), size, size), dtype=np.float32)
    step, amplitude, used = size, 100.0, 0
    while step >= 2:
        half, count = step // 2, size // step
        corners, centres = field[:, ::step, ::step], field[:, half::step, half::step]
        parts = noise[:, used : used + 3 * count * count]
        # The published generator squares the amplitude.
        parts = parts.reshape(len(rng), 3, count, count) * np.float32(amplitude**2)
        below = corners + np.roll(corners, -1, 1)
        centres[...] = (below + np.roll(below, -1, 2)) / 4 + parts[:, 0]
        across = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        down = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        field[:, ::step, half::step] = across / 4 + parts[:, 1]
        field[:, half::step, ::step] = down / 4 + parts[:, 2]
        used += 3 * count * count
        step, amplitude = half, amplitude / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field


@lru_cache(maxsize=3)
def frost_textures(family: str) -> np.ndarray:
    """Return periodic textures of frost, uint8 of shape (5, S, S, 3)."""
    side, width = FROST_SIZES[family]
    panes = [
        _frost(np.random.default_rng(pane), side, width)
        for pane in range(N_FROST_TEXTURES)
    ]
    textures = np.stack(panes)
    textures.setflags(write=False)  # the cached array is shared
    return textures


def _frost(generator: np.random.Generator, side: int, width: float) -> np.ndarray:
    """Return one texture: ridges of crystals at four scales, times a smooth cover."""
    field = partial(_smooth_field, generator, side)
    cover = 0.5 + 0.5 * np.tanh(0.5 + 1.2 * field(2 * width, 2 * width))
    crystals = np.zeros((side, side))
    for octave in range(4):
        scale = width / 2**octave
        across, along = 0.35 * scale, 1.2 * scale
        needles = np.zeros((side, side))
        for turn in generator.uniform(0, np.pi, 3):
            ridge = np.clip(1 - np.abs(field(along, across, turn)), 0, 1) ** 2
            place = np.clip(0.5 + field(scale, scale), 0, 1)
            needles = np.maximum(needles, ridge * place)
        crystals += needles * 0.65**octave
    ice = 0.18 + 0.24 * cover + crystals * (0.1 + 0.42 * cover)
    return (np.clip(ice[..., None] * FROST_TINT, 0, 1) * 255).astype(np.uint8)


def _smooth_field(
    generator: np.random.Generator,
    side: int,
    along: float,
    across: float,
    turn: float = 0.0,
) -> np.ndarray:
    """Return a periodic Gaussian field of unit variance, smoothed by direction."""
    freq_y, freq_x = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]
    ahead = freq_x * np.cos(turn) + freq_y * np.sin(turn)
    aside = freq_y * np.cos(turn) - freq_x * np.sin(turn)
    response = np.exp(
        -0.5 * (2 * np.pi) ** 2 * ((ahead * along) ** 2 + (aside * across) ** 2)
    )
    white = np.fft.rfft2(generator.standard_normal((side, side)))
    field = np.fft.irfft2(white * response, s=(side, side))
    return field / field.std()
