"""Sensor noise: Gaussian, shot (photon counts) and impulse (dead pixels)."""

import numpy as np

from sklearn_sharpbalance.corruption._base import (
    ImageRng,
    severity_constants,
    to_uint8,
)

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise"]


def gaussian_noise(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    r"""Add independent normal noise to every channel of every pixel.

    Parameters
    ----------
    images : ndarray of shape (N, H, W, C), uint8
        Clean images.
    severity : int in 1..5
        How strong; the constants depend on the size of the images.
    rng : ImageRng of length N
        One random stream per image; some kinds draw nothing.

    Returns
    -------
    ndarray of shape (N, H, W, C), uint8
        Corrupted images.

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

    Parameters and the return value are those of :func:`gaussian_noise`.

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

    Parameters and the return value are those of :func:`gaussian_noise`. Channels are
    changed independently, as in the published datasets.
    """
    fraction = severity_constants("impulse_noise", images, severity)
    draw = rng.uniform(images.shape[1:])
    out = images.copy()
    out[draw < fraction] = 255
    out[draw < fraction / 2] = 0
    return out
