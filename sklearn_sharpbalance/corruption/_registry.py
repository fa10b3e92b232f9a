"""Apply the fifteen kinds of corruption by name: :func:`corrupt`."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from sklearn_sharpbalance._validation import check_seed
from sklearn_sharpbalance.corruption._checks import (
    SEVERITIES,
    as_severities,
    check_images,
    check_indices,
    check_severity,
    count_workers,
    function_name,
)
from sklearn_sharpbalance.corruption._random import (
    ImageRng,
    stream_seed,
)
from sklearn_sharpbalance.corruption.blur import (
    defocus_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from sklearn_sharpbalance.corruption.digital import (
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
)
from sklearn_sharpbalance.corruption.noise import (
    gaussian_noise,
    impulse_noise,
    shot_noise,
)
from sklearn_sharpbalance.corruption.weather import brightness, fog, frost, snow
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "CORRUPTIONS",
    "CORRUPTION_GROUPS",
    "SEVERITIES",
    "Corruption",
    "corrupt",
    "iter_corruptions",
]

# Values of the pictures in a chunk: its temporary arrays fit into the CPU's cache.
CHUNK_VALUES = 200_000
# Smallest number of pictures in a chunk, since each call has a fixed cost,
MIN_CHUNK = 16
# unless their values exceed this: 64 MiB for each temporary array of floats.
MAX_VALUES = 2**24


class Corruption(Protocol):
    """A function that corrupts uint8 pictures (N, H, W, C), and returns as many.

    It takes ``images``, ``severity`` (1 to 5) and ``rng``, an :class:`ImageRng` with
    one random stream per picture; see :func:`gaussian_noise` for an example.
    """

    def __call__(
        self, images: np.ndarray, severity: int, rng: ImageRng
    ) -> np.ndarray: ...


CORRUPTION_GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
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
    """Corrupt pictures with one kind at one severity.

    Parameters
    ----------
    images : array-like of shape (N, H, W, 3), (N, H, W, 1) or (N, H, W), uint8
        Clean pictures, colour or grey, of at least 8 x 8 pixels. Up to 48 pixels a side
        CIFAR-10-C's constants apply, up to 96 Tiny-ImageNet-C's, above ImageNet-C's.
    name : str or callable
        A key of ``CORRUPTIONS``, or a function ``(images, severity, rng) -> images``.
    severity : int
        1 (mild) to 5 (strong).
    random_state : None, int, Generator or RandomState, default=None
        Seed. Each kind and severity has its own streams under one seed.
    indices : array-like of int of shape (N,), default=None
        Index of each row in the whole dataset; None means ``0 .. N-1``. The result for
        a picture depends on the seed and its index only, so a dataset can be corrupted
        in batches of any size and order.
    n_jobs : int, default=None
        Number of threads; None is one, -1 all cores. Does not change the result.

    Returns
    -------
    ndarray of the shape of ``images``, uint8
        Corrupted pictures.

    References
    ----------
    .. [1] Hendrycks and Dietterich. "Benchmarking Neural Network Robustness to Common
       Corruptions and Perturbations." ICLR 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_sharpbalance.corruption import corrupt
    >>> grey = np.full((2, 32, 32, 3), 100, dtype=np.uint8)
    >>> corrupt(grey, "brightness", 5)[0, 0, 0]  # 100 + 0.3 * 255
    array([176, 176, 176], dtype=uint8)
    """
    function, label = _resolve(name)
    severity = check_severity(severity)
    pictures, shape = check_images(images)
    indices = check_indices(indices, len(pictures))
    seed = stream_seed(check_seed(random_state), label, severity)
    out = np.empty_like(pictures, order="C")

    def work(part: slice) -> None:
        rng = ImageRng(seed, indices[part])
        clean = np.array(pictures[part], order="C")  # the function may change it
        out[part] = _checked(function(clean, severity, rng), clean, label)

    step = _chunk(int(np.prod(pictures.shape[1:])))
    parts = [slice(i, i + step) for i in range(0, len(pictures), step)]
    workers = count_workers(n_jobs)
    if workers == 1 or len(parts) < 2:
        for part in parts:
            work(part)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, parts))
    return out.reshape(shape)


def iter_corruptions(
    images,
    names: str | Corruption | Iterable[str | Corruption] | None = None,
    severities: int | Iterable[int] = SEVERITIES,
    random_state=0,
    *,
    n_jobs: int | None = None,
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Corrupt pictures with every kind at every severity, one after the other.

    Parameters
    ----------
    images : array-like, uint8
        Clean pictures, see :func:`corrupt`.
    names : str, callable or iterable of those, default=None
        Kinds or groups ("noise", "blur", "weather", "digital"); None is all fifteen.
    severities : int or iterable of int, default=(1, 2, 3, 4, 5)
        Severities of each kind.
    random_state : None, int, Generator or RandomState, default=0
        Seed, see :func:`corrupt`.
    n_jobs : int, default=None
        Threads, see :func:`corrupt`.

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
    labels = {kind: _resolve(kind)[1] for name in names for kind in _expand(name)}
    severities = [check_severity(severity) for severity in as_severities(severities)]
    seed = check_seed(random_state)
    for kind, label in labels.items():
        for severity in severities:
            out = corrupt(images, kind, severity, random_state=seed, n_jobs=n_jobs)
            yield label, severity, out


def _chunk(n_values: int) -> int:
    """Return the number of pictures of ``n_values`` values in a chunk."""
    smallest = min(MIN_CHUNK, MAX_VALUES // n_values)
    return max(1, smallest, CHUNK_VALUES // n_values)


def _checked(result, clean: np.ndarray, label: str) -> np.ndarray:
    """Return the result of a function; raise if it cannot replace the pictures."""
    if not isinstance(result, np.ndarray):
        got = f"a {type(result).__name__}"
    elif result.dtype != np.uint8 or result.shape != clean.shape:
        got = f"{result.dtype} of shape {result.shape}"
    else:
        return result
    raise InvalidInputError(
        f"The corruption {label!r} must return uint8 of shape {clean.shape}, as its "
        f"input, but it returned {got}. End it with np.clip(values, 0, "
        "255).astype('uint8')."
    )


def _expand(name):
    """Return the kinds of a group, or the kind itself."""
    if isinstance(name, str) and name in CORRUPTION_GROUPS:
        return CORRUPTION_GROUPS[name]
    return (name,)


def _resolve(name) -> tuple[Callable, str]:
    if isinstance(name, str) and name in CORRUPTIONS:
        return CORRUPTIONS[name], name
    if callable(name):
        return name, function_name(name)
    raise InvalidInputError(
        f"Unknown corruption {name!r}. Choose one of "
        f"{', '.join(repr(key) for key in CORRUPTIONS)}, or pass a function "
        "(images, severity, rng) -> images."
    )
