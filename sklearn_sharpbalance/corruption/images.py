"""Corrupt images with one of fifteen kinds: :func:`corrupt`."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from joblib import Parallel, delayed

from sklearn_sharpbalance._validation import check_seed
from sklearn_sharpbalance.corruption import blur, digital, weather
from sklearn_sharpbalance.corruption._base import (
    SEVERITIES,
    ImageRng,
    as_severities,
    check_severity,
    kind_name,
    resolve,
    stream_seed,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

MIN_SIDE = 8
# Values of the images in a chunk: its temporary arrays fit into the CPU's cache.
CHUNK_VALUES = 200_000
# Smallest number of images in a chunk, since each call has a fixed cost,
MIN_CHUNK = 16
# unless their values exceed this: 64 MiB for each temporary array of floats.
MAX_VALUES = 2**24
SIGNATURE = "(images, severity, rng) -> images"


class Corruption(Protocol):
    """A function that corrupts images, as all fifteen kinds are.

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
    """

    def __call__(
        self, images: np.ndarray, severity: int, rng: ImageRng
    ) -> np.ndarray: ...


BY_GROUP: dict[str, tuple[Corruption, ...]] = {
    "noise": (digital.gaussian_noise, digital.shot_noise, digital.impulse_noise),
    "blur": (blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur),
    "weather": (weather.snow, weather.frost, weather.fog, weather.brightness),
    "digital": (
        digital.contrast,
        digital.elastic_transform,
        digital.pixelate,
        digital.jpeg_compression,
    ),
}
CORRUPTIONS: dict[str, Corruption] = {
    kind_name(kind): kind for kinds in BY_GROUP.values() for kind in kinds
}
CORRUPTION_GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(map(kind_name, kinds)) for group, kinds in BY_GROUP.items()
}


def corrupt(
    images,
    name: str | Corruption,
    severity: int,
    *,
    random_state=None,
    indices=None,
    n_jobs: int | None = None,
) -> np.ndarray:
    """Corrupt images with one kind at one severity.

    Parameters
    ----------
    images : array-like of shape (N, H, W, 3), (N, H, W, 1) or (N, H, W), uint8
        Clean images, colour or grey, of at least 8 x 8 pixels. Up to 48 pixels a side
        CIFAR-10-C's constants apply, up to 96 Tiny-ImageNet-C's, above ImageNet-C's.
    name : str or callable
        A key of ``CORRUPTIONS``, or a function ``(images, severity, rng) -> images``.
    severity : int
        1 (mild) to 5 (strong).
    random_state : None, int, Generator or RandomState, default=None
        Seed. Each kind and severity has its own streams under one seed.
    indices : array-like of int of shape (N,), default=None
        Index of each row in the whole dataset; None means ``0 .. N-1``. The result for
        an image depends on the seed and its index only, so a dataset can be corrupted
        in batches of any size and order.
    n_jobs : int, default=None
        Number of threads; None is one, -1 all cores. Does not change the result.

    Returns
    -------
    ndarray of the shape of ``images``, uint8
        Corrupted images.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_sharpbalance.corruption import corrupt
    >>> grey = np.full((2, 32, 32, 3), 100, dtype=np.uint8)
    >>> corrupt(grey, "brightness", 5)[0, 0, 0]  # 100 + 0.3 * 255
    array([176, 176, 176], dtype=uint8)
    """
    function, label = resolve(name, CORRUPTIONS, SIGNATURE)
    severity = check_severity(severity)
    clean, shape = _check_images(images)  # (N, H, W, C)
    indices = _check_indices(indices, len(clean))
    seed = stream_seed(check_seed(random_state), label, severity)
    out = np.empty_like(clean, order="C")

    def work(part: slice) -> None:
        rng = ImageRng(seed, indices[part])
        own = np.array(clean[part], order="C")  # the function may change it
        out[part] = _checked(function(own, severity, rng), own.shape, label)

    step = _chunk(int(np.prod(clean.shape[1:])))
    parts = [slice(i, i + step) for i in range(0, len(clean), step)]
    Parallel(n_jobs, require="sharedmem")(delayed(work)(part) for part in parts)
    return out.reshape(shape)


def iter_corruptions(
    images,
    names: str | Corruption | Iterable[str | Corruption] | None = None,
    severities: int | Iterable[int] = SEVERITIES,
    random_state=0,
    *,
    n_jobs: int | None = None,
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Corrupt images with every kind at every severity, one after the other.

    Parameters
    ----------
    images, random_state, n_jobs
        See :func:`corrupt`.
    names : str, callable or iterable of those, default=None
        Kinds or groups ("noise", "blur", "weather", "digital"); None is all fifteen.
    severities : int or iterable of int, default=(1, 2, 3, 4, 5)
        Severities of each kind.

    Yields
    ------
    name : str
    severity : int
    images : ndarray, uint8
        The result of ``corrupt(images, name, severity, random_state=random_state)``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_sharpbalance.corruption import iter_corruptions
    >>> images = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    >>> [(name, s) for name, s, _ in iter_corruptions(images, ["fog"], [1, 5])]
    [('fog', 1), ('fog', 5)]
    """
    names = CORRUPTIONS if names is None else names
    if isinstance(names, str) or callable(names) or not isinstance(names, Iterable):
        names = [names]
    # A kind that is also in a group is applied once.
    labels = {
        kind: resolve(kind, CORRUPTIONS, SIGNATURE)[1]
        for name in names
        for kind in expand(name)
    }
    severities = [check_severity(severity) for severity in as_severities(severities)]
    seed = check_seed(random_state)
    for kind, label in labels.items():
        for severity in severities:
            out = corrupt(images, kind, severity, random_state=seed, n_jobs=n_jobs)
            yield label, severity, out


def _chunk(n_values: int) -> int:
    """Return the number of images of ``n_values`` values in a chunk."""
    smallest = min(MIN_CHUNK, MAX_VALUES // n_values)
    return max(1, smallest, CHUNK_VALUES // n_values)


def _checked(result, shape: tuple[int, ...], label: str) -> np.ndarray:
    """Return the result of a function; raise if it cannot replace the images."""
    if not isinstance(result, np.ndarray):
        got = f"a {type(result).__name__}"
    elif result.dtype != np.uint8 or result.shape != shape:
        got = f"{result.dtype} of shape {result.shape}"
    else:
        return result
    raise InvalidInputError(
        f"The corruption {label!r} must return uint8 of shape {shape}, as its input, "
        f"but it returned {got}. End it with np.clip(values, 0, 255).astype('uint8')."
    )


def expand(name) -> tuple:
    """Return the kinds of a group, or the kind itself."""
    if isinstance(name, str) and name in CORRUPTION_GROUPS:
        return CORRUPTION_GROUPS[name]
    return (name,)


def _check_images(images) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the images as (N, H, W, C), and their original shape."""
    try:
        images = np.asarray(images)
    except ValueError as error:  # raised for lists of unequal length
        raise InvalidInputError(
            f"Images must have one size to form an array ({error}). Resize them."
        ) from error
    if images.dtype != np.uint8:
        raise InvalidInputError(
            f"Images must be uint8 with values 0..255, got {images.dtype}. Convert "
            "them, for floats in [0, 1] with (images * 255).round().astype('uint8')."
        )
    whole = images[..., None] if images.ndim == 3 else images
    is_one = images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (1, 3))
    if is_one or whole.ndim != 4 or whole.shape[-1] not in (1, 3):
        raise InvalidInputError(
            "Images must have shape (N, H, W, 3), (N, H, W, 1) or (N, H, W), got "
            f"{images.shape}. {_remedy(images.shape, is_one)}"
        )
    if min(whole.shape[1:3]) < MIN_SIDE:
        raise InvalidInputError(
            f"Images must be at least {MIN_SIDE} x {MIN_SIDE} pixels, got "
            f"{whole.shape[1]} x {whole.shape[2]}."
        )
    return whole, images.shape


def _remedy(shape: tuple[int, ...], is_one: bool) -> str:
    if is_one:
        return "For one image pass images[None]."
    if shape[-1] == 4 and shape[1] not in (1, 3):
        return "Remove the opacity of (N, H, W, 4) with images[..., :3]."
    if len(shape) == 4 and shape[1] in (1, 3, 4):
        return "Move the channels to the end with images.transpose(0, 2, 3, 1)."
    return "Grey images have one channel, colour images three."


def _check_indices(indices, n: int) -> np.ndarray:
    if indices is None or (n == 0 and np.size(indices) == 0):
        return np.arange(n)
    indices = np.asarray(indices)
    if indices.shape != (n,) or indices.dtype.kind not in "iu" or (indices < 0).any():
        raise InvalidInputError(
            f"indices must be {n} non-negative integers, one per image, got an array "
            f"of {indices.dtype} of shape {indices.shape}."
        )
    return indices
