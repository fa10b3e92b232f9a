"""Blur: a lens out of focus, frosted glass, motion of the camera, zoom."""

import numpy as np

from sklearn_sharpbalance.corruption._constants import severity_constants
from sklearn_sharpbalance.corruption._filters import (
    convolve,
    disk,
    gaussian_matrix,
    motion_blur_planar,
    planar,
    separable,
    to_uint8,
    zoom_blur_matrix,
    zoom_mean,
)
from sklearn_sharpbalance.corruption._random import ImageRng

__all__ = ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"]

# Beyond so many pixels the matrix of a zoom blur takes hundreds of MiB.
MAX_MATRIX_PIXELS = 2**18
# Up to so many pictures, single numbers are moved faster than short arrays of them.
FEW = 20


def _interleaved(planes: np.ndarray) -> np.ndarray:
    """Float (N, C, H, W) to uint8 (N, H, W, C)."""
    return np.ascontiguousarray(to_uint8(planes).transpose(0, 2, 3, 1))


def _gaussian_blur(planes: np.ndarray, sigma: float) -> np.ndarray:
    """Blur (N, C, H, W) with repeated borders, cut at four sigma."""
    if int(4 * sigma + 0.5) == 0:  # the kernel is a single one
        return planes
    rows, columns = (
        gaussian_matrix(size, sigma, "nearest", 4.0) for size in planes.shape[2:]
    )
    return separable(planes, rows, columns)


def defocus_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Convolution with a disk whose edge is softened (a lens out of focus).

    Parameters
    ----------
    images : ndarray of shape (N, H, W, C), uint8
        Clean pictures.
    severity : int in 1..5
        How strong; the constants depend on the size of the pictures.
    rng : ImageRng of length N
        One random stream per picture; not used here.

    Returns
    -------
    ndarray of shape (N, H, W, C), uint8
        Corrupted pictures.
    """
    radius, alias_blur = severity_constants("defocus_blur", images, severity)
    return _interleaved(convolve(planar(images), disk(radius, alias_blur)))


def motion_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Smear along a random direction within 45 degrees of the horizontal.

    Parameters and the return value are those of :func:`defocus_blur`, with ``rng``
    giving the direction.

    Notes
    -----
    The published sets called ImageMagick. This follows the same rule (a one-sided
    Gaussian over nearest pixels along the direction) without ImageMagick's 16-bit
    intermediate, so single values may differ by one.
    """
    radius, sigma = severity_constants("motion_blur", images, severity)
    angles = rng.uniform(low=-45, high=45)
    return _interleaved(motion_blur_planar(planar(images), angles, radius, sigma))


def zoom_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Mean of the picture and enlargements of its middle (a camera that moves in).

    Parameters and the return value are those of :func:`defocus_blur`.
    """
    stop, step = severity_constants("zoom_blur", images, severity)
    n, height, width, channels = images.shape
    if height * width > MAX_MATRIX_PIXELS:
        return to_uint8(zoom_mean(images.astype(np.float32), stop, step))
    matrix = zoom_blur_matrix(height, width, stop, step)  # (HW, HW), sparse
    pixels = images.reshape(n, height * width, channels).transpose(1, 0, 2)
    flat = pixels.astype(np.float32, order="C").reshape(height * width, -1)
    blurred = to_uint8(matrix @ flat).reshape(height * width, n, channels)
    return np.ascontiguousarray(blurred.transpose(1, 0, 2)).reshape(images.shape)


def glass_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Blur, move pixels about at random within a small window, blur again.

    Parameters and the return value are those of :func:`defocus_blur`, with ``rng``
    giving the moves.

    Notes
    -----
    The published generator means to swap two pixels, but what it swaps are views of
    one array, so each pixel, from the last to the first, takes the value of a random
    neighbour and gives none back. The published sets were made so, and so is this.
    CIFAR's constants are not monotone: severity 3 blurs more than severity 4, which
    moves pixels twice.
    """
    sigma, reach, iterations = severity_constants("glass_blur", images, severity)
    blurred = _interleaved(_gaussian_blur(planar(images), sigma))
    n, height, width, channels = images.shape
    source = _glass_sources(rng, height, width, reach, iterations)  # (N, HW)
    source += np.arange(n, dtype=np.intp)[:, None] * (height * width)
    moved = blurred.reshape(-1, channels)[source].reshape(images.shape)
    return _interleaved(_gaussian_blur(planar(moved), sigma))


def _glass_sources(
    rng: ImageRng, height: int, width: int, reach: int, iterations: int
) -> np.ndarray:
    """Which pixel each pixel shows in the end, as flat indices (N, HW)."""
    n = len(rng)
    source = np.tile(np.arange(height * width, dtype=np.intp), (n, 1))
    ys = np.arange(height - reach, reach, -1)
    xs = np.arange(width - reach, reach, -1)
    here = (ys[:, None] * width + xs).ravel()  # (K,), last pixel first
    for _ in range(iterations):
        dx, dy = rng.integers(-reach, reach, (2, here.size)).swapaxes(0, 1)
        there = here + dy.astype(np.intp) * width + dx  # (N, K)
        if reach == 1:
            # Moves go up and left only, to pixels whose turn is yet to come: the order
            # of the moves does not matter and all can be made at once.
            source[:, here] = np.take_along_axis(source, there, axis=1)
        elif n <= FEW:
            pixels = here.tolist()
            for shown, others in zip(source, there):
                _move(memoryview(shown), pixels, others.tolist())
        else:
            rows = np.arange(n)
            for k, pixel in enumerate(here):
                source[:, pixel] = source[rows, there[:, k]]
    return source


def _move(shown: memoryview, pixels: list[int], others: list[int]) -> None:
    """Let each pixel, in turn, take what another one shows."""
    for pixel, other in zip(pixels, others):
        shown[pixel] = shown[other]
