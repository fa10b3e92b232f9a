"""Random textures of the weather corruptions: a plasma fractal, and frost."""

from functools import lru_cache, partial

import numpy as np

from sklearn_sharpbalance.corruption._random import ImageRng

__all__ = ["frost_textures", "plasma"]


def plasma(rng: ImageRng, side: int, decay: float) -> np.ndarray:
    """Return diamond-square fractals in [0, 1], one per stream.

    Parameters
    ----------
    rng : ImageRng of length N
        One random stream per fractal.
    side : int
        Rounded up to a power of two, S.
    decay : float
        Divisor of the amplitude each time the step is halved; larger is smoother.

    Returns
    -------
    ndarray of shape (N, S, S), float32
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


# Side of a texture and width of its largest crystals, in pixels. The published
# generators shrink their photographs to 0.2 and 0.3 for small pictures.
FROST_SIZES = {"cifar": (256, 8.0), "tiny": (384, 12.0), "imagenet": (512, 40.0)}
N_FROST_TEXTURES = 5
FROST_TINT = np.array([0.88, 0.96, 1.0])  # ice is a little blue


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
