"""Validation of the arguments of corruptions."""

import os
from collections.abc import Iterable

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "SEVERITIES",
    "as_severities",
    "check_images",
    "check_indices",
    "check_severity",
    "count_workers",
    "function_name",
]

SEVERITIES = (1, 2, 3, 4, 5)
MIN_SIDE = 8


def check_severity(severity) -> int:
    if not isinstance(severity, (int, np.integer)) or severity not in SEVERITIES:
        raise InvalidInputError(
            f"severity must be an integer from 1 to 5, got {severity!r}."
        )
    return int(severity)


def as_severities(severities) -> list:
    """Return a list of one or several severities, without duplicates."""
    if not isinstance(severities, Iterable):
        return [severities]
    return list(dict.fromkeys(severities))


def check_images(images) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the pictures as (N, H, W, C), and their original shape."""
    images = _as_array(images)
    if images.dtype != np.uint8:
        raise InvalidInputError(
            f"Pictures must be uint8 with values 0..255, got {images.dtype}. Convert "
            "them, for floats in [0, 1] with (images * 255).round().astype('uint8')."
        )
    pictures = images[..., None] if images.ndim == 3 else images
    is_one = images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (1, 3))
    if is_one or pictures.ndim != 4 or pictures.shape[-1] not in (1, 3):
        raise InvalidInputError(
            "Pictures must have shape (N, H, W, 3), (N, H, W, 1) or (N, H, W), got "
            f"{images.shape}. {_remedy(images.shape, is_one)}"
        )
    if min(pictures.shape[1:3]) < MIN_SIDE:
        raise InvalidInputError(
            f"Pictures must be at least {MIN_SIDE} x {MIN_SIDE} pixels, got "
            f"{pictures.shape[1]} x {pictures.shape[2]}."
        )
    return pictures, images.shape


def _as_array(images) -> np.ndarray:
    try:
        return np.asarray(images)
    except ValueError as error:  # raised for lists of unequal length
        raise InvalidInputError(
            f"Pictures must have one size to form an array ({error}). Resize them."
        ) from error


def _remedy(shape: tuple[int, ...], is_one: bool) -> str:
    if is_one:
        return "For one picture pass images[None]."
    if shape[-1] == 4 and shape[1] not in (1, 3):
        return "Remove the opacity of (N, H, W, 4) with images[..., :3]."
    if len(shape) == 4 and shape[1] in (1, 3, 4):
        return (
            "Move the channels of (N, C, H, W) to the end with "
            "images.transpose(0, 2, 3, 1)."
        )
    return "Grey pictures have one channel, colour pictures three."


def check_indices(indices, n: int) -> np.ndarray:
    if indices is None or (n == 0 and np.size(indices) == 0):
        return np.arange(n)
    indices = np.asarray(indices)
    if indices.shape != (n,) or indices.dtype.kind not in "iu" or (indices < 0).any():
        raise InvalidInputError(
            f"indices must be {n} non-negative integers, one per picture, got an array "
            f"of {indices.dtype} of shape {indices.shape}."
        )
    return indices


def count_workers(n_jobs: int | None) -> int:
    if n_jobs is None:
        return 1
    if not isinstance(n_jobs, (int, np.integer)) or n_jobs == 0:
        raise InvalidInputError(
            "n_jobs must be None, a positive count or -1 for all cores, got "
            f"{n_jobs!r}."
        )
    return int(n_jobs) if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


def function_name(function) -> str:
    """Return the name of a user's function, also for a functools.partial."""
    function = getattr(function, "func", function)
    return getattr(function, "__name__", type(function).__name__)
