"""Blur: lens out of focus, frosted glass, motion and zoom of the camera."""

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

# For more pixels the matrix of a zoom blur takes hundreds of MiB.
MAX_MATRIX_PIXELS = 2**18
# Up to this number of pictures, a Python loop over pixels is faster than numpy.
FEW = 20


def _interleaved(planes: np.ndarray) -> np.ndarray:
    """Convert float (N, C, H, W) to uint8 (N, H, W, C)."""
    return np.ascontiguousarray(to_uint8(planes).transpose(0, 2, 3, 1))


def _gaussian_blur(planes: np.ndarray, sigma: float) -> np.ndarray:
    """Blur (N, C, H, W) with a Gaussian up to four sigma; repeat borders."""
    if int(4 * sigma + 0.5) == 0:  # the kernel has one tap
        return planes
    rows, columns = (
        gaussian_matrix(size, sigma, "nearest", 4.0) for size in planes.shape[2:]
    )
    return separable(planes, rows, columns)


def defocus_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Convolve with a disk whose edge is smoothed, as a lens out of focus.

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
    """Blur along a random direction within 45 degrees of the horizontal.

    Parameters and the return value are those of :func:`defocus_blur`; ``rng`` draws
    the direction.

    Notes
    -----
    The published datasets were made with ImageMagick. This uses the same filter (a
    one-sided Gaussian over the nearest pixels along the direction) without
    ImageMagick's rounding to 16 bits, so single values may differ by one.
    """
    radius, sigma = severity_constants("motion_blur", images, severity)
    angles = rng.uniform(low=-45, high=45)
    blurred = motion_blur_planar(planar(images), angles, radius, sigma)
    blurred += np.float32(0.5)  # ImageMagick rounds, other generators truncate
    return _interleaved(blurred)


def zoom_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Average the picture and enlargements of its middle, as a zooming camera.

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
    """Blur, move pixels at random within a small window, and blur again.

    Parameters and the return value are those of :func:`defocus_blur`; ``rng`` draws
    the moves.

    Notes
    -----
    The published generator intends to swap two pixels, but it swaps views of one
    array, so that each pixel, from the last to the first, only takes the value of a
    random neighbour. This does the same. The constants of CIFAR-10-C are not monotone:
    severity 3 blurs more than severity 4, which moves pixels twice.
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
    """Return the source pixel of each pixel, as flat indices (N, HW)."""
    n = len(rng)
    source = np.tile(np.arange(height * width, dtype=np.intp), (n, 1))
    ys = np.arange(height - reach, reach, -1)
    xs = np.arange(width - reach, reach, -1)
    here = (ys[:, None] * width + xs).ravel()  # (K,), last pixel first
    for _ in range(iterations):
        dx, dy = rng.integers(-reach, reach, (2, here.size)).swapaxes(0, 1)
        there = here + dy.astype(np.intp) * width + dx  # (N, K)
        if reach == 1:
            # All sources are above or to the left, and not moved yet: the order does
            # not matter, and all pixels are moved at once.
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
    """Copy one pixel to another, in order."""
    for pixel, other in zip(pixels, others):
        shown[pixel] = shown[other]
