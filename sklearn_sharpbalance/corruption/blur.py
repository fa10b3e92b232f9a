"""Blur: lens out of focus, frosted glass, motion and zoom of the camera.

Its linear filters serve other kinds, too. They work on planes, float32 of shape
(N, C, H, W) with values in 0..255, so that a separable filter is two matrix products.
Functions import SciPy's modules themselves, since these take longer to load than the
rest of the package.
"""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sklearn_sharpbalance.corruption._base import ImageRng, severity_constants, to_uint8

# For more pixels the matrix of a zoom blur takes hundreds of MiB.
MAX_MATRIX_PIXELS = 2**18
# With more taps, convolution by FFT is faster.
MAX_DIRECT_TAPS = 64
# Taps below this fraction of the largest do not change an 8-bit value.
NEGLIGIBLE = 1e-5
# Largest number of values of shifted images in memory: 64 MiB.
MAX_SHIFTED = 2**24


def defocus_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Convolve with a disk whose edge is smoothed, as a lens out of focus."""
    radius, alias_blur = severity_constants("defocus_blur", images, severity)
    return _interleaved(convolve(_planar(images), disk(radius, alias_blur)))


def motion_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Blur along a random direction within 45 degrees of the horizontal.

    Notes
    -----
    The published datasets were made with ImageMagick. This uses the same filter (a
    one-sided Gaussian over the nearest pixels along the direction) without
    ImageMagick's rounding to 16 bits, so single values may differ by one.
    """
    radius, sigma = severity_constants("motion_blur", images, severity)
    angles = rng.uniform(low=-45, high=45)
    blurred = motion_blur_planar(_planar(images), angles, radius, sigma)
    blurred += np.float32(0.5)  # ImageMagick rounds, other generators truncate
    return _interleaved(blurred)


def zoom_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Average the image and enlargements of its middle, as a zooming camera."""
    stop, step = severity_constants("zoom_blur", images, severity)
    n, height, width, channels = images.shape
    if height * width > MAX_MATRIX_PIXELS:
        return _interleaved(_zoom_mean(_planar(images), stop, step))
    matrix = zoom_blur_matrix(height, width, stop, step)  # (HW, HW), sparse
    pixels = images.reshape(n, height * width, channels).transpose(1, 0, 2)
    flat = pixels.astype(np.float32, order="C").reshape(height * width, -1)
    blurred = to_uint8(matrix @ flat).reshape(height * width, n, channels)
    return np.ascontiguousarray(blurred.transpose(1, 0, 2)).reshape(images.shape)


def glass_blur(images: np.ndarray, severity: int, rng: ImageRng) -> np.ndarray:
    """Blur, move pixels at random within a small window, and blur again.

    Notes
    -----
    The published generator intends to swap two pixels, but it swaps views of one
    array, so that each pixel, from the last to the first, only takes the value of a
    random neighbour. This does the same. The constants of CIFAR-10-C are not monotone:
    severity 3 blurs more than severity 4, which moves pixels twice.
    """
    sigma, reach, iterations = severity_constants("glass_blur", images, severity)
    blurred = _interleaved(_gaussian_blur(_planar(images), sigma))
    n, height, width, channels = images.shape
    source = _glass_sources(rng, height, width, reach, iterations)  # (N, HW)
    source += np.arange(n, dtype=np.intp)[:, None] * (height * width)
    moved = blurred.reshape(-1, channels)[source].reshape(images.shape)
    return _interleaved(_gaussian_blur(_planar(moved), sigma))


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
            continue
        for k, pixel in enumerate(here):
            source[:, pixel] = source[np.arange(n), there[:, k]]
    return source


def _planar(images: np.ndarray) -> np.ndarray:
    """Convert uint8 (N, H, W, C) to float32 (N, C, H, W)."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)


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


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, mode: str, truncate: float) -> np.ndarray:
    """Return the matrix of the 1-D Gaussian filter for an axis of length ``size``."""
    from scipy import ndimage

    matrix = np.eye(size)
    if sigma > 0:
        matrix = ndimage.gaussian_filter1d(
            matrix, sigma, axis=0, mode=mode, truncate=truncate
        )
    return matrix.astype(np.float32)  # (size, size)


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> np.ndarray:
    """Return the matrix that enlarges the middle of an axis linearly to ``size``."""
    from scipy import ndimage

    crop = int(np.ceil(size / factor))
    top = (size - crop) // 2
    middle = np.eye(size)[top : top + crop]
    zoomed = ndimage.zoom(middle, (factor, 1), order=1)
    trim = (len(zoomed) - size) // 2
    return zoomed[trim : trim + size].astype(np.float32)  # (size, size)


@lru_cache(maxsize=16)
def zoom_blur_matrix(height: int, width: int, stop: float, step: float):
    """Return the sparse matrix (HW, HW) of the mean of an image's enlargements."""
    from scipy import sparse

    factors = np.arange(1, stop, step)
    total = sparse.identity(height * width, dtype=np.float32, format="csr")
    for factor in factors:
        rows, columns = zoom_matrix(height, factor), zoom_matrix(width, factor)
        total = total + sparse.kron(
            sparse.csr_array(rows), sparse.csr_array(columns), "csr"
        )
    return sparse.csr_array(total / np.float32(len(factors) + 1), dtype=np.float32)


def _zoom_mean(planes: np.ndarray, stop: float, step: float) -> np.ndarray:
    """Compute the same mean of (N, C, H, W) without a matrix for whole images."""
    height, width = planes.shape[2:]
    factors = np.arange(1, stop, step)
    total = planes.copy()
    for factor in factors:
        rows, columns = zoom_matrix(height, factor), zoom_matrix(width, factor)
        total += separable(planes, rows, columns)
    return total / np.float32(len(factors) + 1)


def separable(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return ``rows @ image @ columns.T`` for each plane of (..., H, W)."""
    return np.matmul(rows, images @ columns.T)


@lru_cache(maxsize=32)
def disk(radius: float, alias_blur: float) -> np.ndarray:
    """Return the kernel of a lens out of focus, a disk smoothed by a small Gaussian."""
    from scipy import ndimage

    reach = 8 if radius <= 8 else int(radius)
    taps = 1 if radius <= 8 else 2
    axis = np.arange(-reach, reach + 1)
    kernel = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float64)
    kernel /= kernel.sum()
    soft = np.exp(-0.5 * (np.arange(-taps, taps + 1) / alias_blur) ** 2)
    soft /= soft.sum()
    for ax in (0, 1):
        # At radius 8 and 10 the disk touches the border, and the sum differs from one
        # by 1 %, as in the published generators.
        kernel = ndimage.correlate1d(kernel, soft, axis=ax, mode="mirror")
    total = kernel.sum()
    kernel[kernel < NEGLIGIBLE * kernel.max()] = 0
    kernel *= total / kernel.sum()  # or constant images would get darker
    used = np.abs(axis[kernel.any(axis=0)]).max()
    return kernel[reach - used : reach + used + 1, reach - used : reach + used + 1]


def convolve(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolve planes (N, C, H, W) with an odd symmetric kernel; mirror borders."""
    if not len(images):
        return images
    height, width = images.shape[2:]
    pad = kernel.shape[0] // 2
    wide = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
    if np.count_nonzero(kernel) > MAX_DIRECT_TAPS:
        from scipy import signal

        weights = kernel[None, None].astype(np.float32)
        return signal.fftconvolve(wide, weights, mode="valid", axes=(2, 3))
    out = np.zeros_like(images)
    for y, x in np.argwhere(kernel):
        out += np.float32(kernel[y, x]) * wide[:, :, y : y + height, x : x + width]
    return out


def motion_blur_planar(
    images: np.ndarray, angles: np.ndarray, radius: int, sigma: float
) -> np.ndarray:
    """Blur each image (N, C, H, W) along its own angle (N,), in degrees.

    As ImageMagick does: a one-sided Gaussian over ``2 * radius + 1`` steps of one pixel
    along the angle, each at the nearest pixel; borders are repeated.
    """
    if not len(images):
        return images
    n, height, width = len(images), *images.shape[2:]
    taps = min(2 * radius + 1, int(np.ceil(5 * sigma)) + 1)  # exp(-12.5) ends it
    steps = np.arange(taps)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    weights = (weights / weights.sum()).astype(np.float32)  # (K,)
    turn = np.deg2rad(angles.astype(np.float64))[:, None]
    xs = np.ceil(steps * np.cos(turn) - 0.5).astype(np.intp)  # (N, K)
    ys = np.ceil(steps * np.sin(turn) - 0.5).astype(np.intp)  # (N, K)
    (top, bottom), (left, right) = [
        (max(0, -int(s.min())), max(0, int(s.max()))) for s in (ys, xs)
    ]
    wide = np.pad(images, ((0, 0), (0, 0), (top, bottom), (left, right)), mode="edge")
    windows = sliding_window_view(wide, (height, width), axis=(2, 3))
    windows = windows.transpose(0, 2, 3, 1, 4, 5)  # (N, Y, X, C, H, W)
    out = np.empty_like(images)
    step = max(1, MAX_SHIFTED // (taps * images[0].size))
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        shifted = windows[rows[:, None], ys[rows] + top, xs[rows] + left]
        flat = shifted.reshape(len(rows), taps, -1)  # (R, K, C * H * W)
        out[rows] = (weights @ flat).reshape(len(rows), *images.shape[1:])
    return out


def _fold(index: np.ndarray, size: int, mode: str) -> np.ndarray:
    """Reflect indices in place, at the last pixel ("mirror") or at its edge."""
    if mode == "mirror":
        last = period = 2 * (size - 1)
    else:
        last, period = 2 * size - 1, 2 * size
    index %= period
    return np.minimum(index, last - index, out=index)


def bilinear(
    images: np.ndarray, ys: np.ndarray, xs: np.ndarray, mode: str
) -> np.ndarray:
    """Interpolate (N, H, W, C) at coordinates (N, H, W) between four pixels."""
    n, height, width, channels = images.shape
    y_low, x_low = np.floor(ys), np.floor(xs)
    dy, dx = (ys - y_low)[..., None], (xs - x_low)[..., None]
    y_low, x_low = y_low.astype(np.int32), x_low.astype(np.int32)
    start = np.arange(n, dtype=np.intp)[:, None, None] * (height * width)
    top = start + width * _fold(y_low.copy(), height, mode)
    bottom = start + width * _fold(y_low + 1, height, mode)
    left = _fold(x_low.copy(), width, mode)
    right = _fold(x_low + 1, width, mode)
    pixels = images.reshape(-1, channels)

    def row(base):
        a, b = pixels[base + left], pixels[base + right]
        b -= a
        b *= dx
        b += a
        return b

    upper, lower = row(top), row(bottom)
    lower -= upper
    lower *= dy
    lower += upper
    return lower
