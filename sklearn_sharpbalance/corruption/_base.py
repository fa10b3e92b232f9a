"""What the kinds share: severities and their constants, names, random streams.

The numbers are those of the three published generators [1]_: for each kind and each
family of images, one entry per severity. The fields of a tuple get their names where
they are unpacked.

References
----------
.. [1] Hendrycks and Dietterich. "Benchmarking Neural Network Robustness to Common
   Corruptions and Perturbations." ICLR 2019. https://github.com/hendrycks/robustness
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

SEVERITIES = (1, 2, 3, 4, 5)
# The published generators truncate float64; float32 may have 99.99999 instead of 100.
ROUND_GUARD = 1e-4
SMALL_SIDE = 48  # up to here CIFAR's constants (32 x 32)
MEDIUM_SIDE = 96  # up to here Tiny-ImageNet's (64 x 64), above ImageNet's (224 x 224)

CONSTANTS: dict[str, dict[str, tuple]] = {
    "gaussian_noise": {
        "cifar": (0.04, 0.06, 0.08, 0.09, 0.10),
        "tiny": (0.04, 0.08, 0.12, 0.15, 0.18),
        "imagenet": (0.08, 0.12, 0.18, 0.26, 0.38),
    },
    "shot_noise": {
        "cifar": (500, 250, 100, 75, 50),
        "tiny": (250, 100, 50, 30, 15),
        "imagenet": (60, 25, 12, 5, 3),
    },
    "impulse_noise": {
        "cifar": (0.01, 0.02, 0.03, 0.05, 0.07),
        "tiny": (0.01, 0.02, 0.05, 0.08, 0.14),
        "imagenet": (0.03, 0.06, 0.09, 0.17, 0.27),
    },
    "defocus_blur": {
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "tiny": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    "glass_blur": {
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "tiny": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    "motion_blur": {
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "tiny": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    "zoom_blur": {
        "cifar": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "tiny": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "imagenet": tuple(
            zip((1.11, 1.16, 1.21, 1.26, 1.31), (0.01, 0.01, 0.02, 0.02, 0.03))
        ),
    },
    "snow": {
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "tiny": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    "frost": {
        "cifar": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "tiny": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        "imagenet": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    },
    "fog": {
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "tiny": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    "brightness": {
        "cifar": (0.05, 0.1, 0.15, 0.2, 0.3),
        "tiny": (0.1, 0.2, 0.3, 0.4, 0.5),
        "imagenet": (0.1, 0.2, 0.3, 0.4, 0.5),
    },
    "contrast": {
        "cifar": (0.75, 0.5, 0.4, 0.3, 0.15),
        "tiny": (0.4, 0.3, 0.2, 0.1, 0.05),
        "imagenet": (0.4, 0.3, 0.2, 0.1, 0.05),
    },
    # In units of the side; ImageNet-C used 244 for the side of its 224 x 224 images.
    "elastic_transform": {
        "cifar": (
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        "tiny": (
            (0, 0, 0.08),
            (0.05, 0.3, 0.06),
            (0.1, 0.08, 0.06),
            (0.1, 0.03, 0.03),
            (0.16, 0.03, 0.02),
        ),
        "imagenet": tuple(
            tuple(value * 244 / 224 for value in row)
            for row in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
    },
    "pixelate": {
        "cifar": (0.95, 0.9, 0.85, 0.75, 0.65),
        "tiny": (0.9, 0.8, 0.7, 0.6, 0.5),
        "imagenet": (0.6, 0.5, 0.4, 0.3, 0.25),
    },
    "jpeg_compression": {
        "cifar": (80, 65, 58, 50, 40),
        "tiny": (65, 58, 50, 40, 25),
        "imagenet": (25, 18, 15, 10, 7),
    },
}


def check_severity(severity) -> int:
    """Return a severity as an int, or raise if it is not one of the five."""
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


def kind_name(kind) -> str:
    """Return the name of a kind: a string, a function or a functools.partial."""
    if isinstance(kind, str):
        return kind
    function = getattr(kind, "func", kind)
    return getattr(function, "__name__", type(function).__name__)


def resolve(kind, known: Mapping[str, Callable], signature: str) -> tuple[Any, str]:
    """Return function and name of a kind, or raise if it is not known."""
    if isinstance(kind, str) and kind in known:
        return known[kind], kind
    if callable(kind):
        return kind, kind_name(kind)
    raise InvalidInputError(
        f"Unknown corruption {kind!r}. Choose one of {', '.join(map(repr, known))}, or "
        f"pass a function {signature}."
    )


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Truncate floats to uint8, as the published generators do; changes ``values``."""
    values += np.float32(ROUND_GUARD)
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def family(height: int, width: int) -> str:
    """Return the constants for images of this size: "cifar", "tiny", "imagenet"."""
    side = max(height, width)
    if side <= SMALL_SIDE:
        return "cifar"
    return "tiny" if side <= MEDIUM_SIDE else "imagenet"


def severity_constants(name: str, images, severity: int) -> Any:
    """Return the constants of one kind for ``images`` of shape (N, H, W, C)."""
    return CONSTANTS[name][family(*images.shape[1:3])][severity - 1]


class ImageRng:
    """One random stream per image.

    A draw for image ``indices[i]`` depends on the seed, on that index and on the number
    of earlier draws, not on the other images. All streams use one Philox generator: its
    key is (seed, index) and the high word of its counter is the number of the draw, so
    that no state per image is needed.

    Parameters
    ----------
    seed : int
        Seed of all streams, taken modulo :math:`2^{64}`.
    indices : array-like of int of shape (N,)
        Index of each image in the dataset; non-negative.

    Examples
    --------
    >>> from sklearn_sharpbalance.corruption import ImageRng
    >>> whole = ImageRng(0, [0, 1, 2]).normal((4,))
    >>> part = ImageRng(0, [2]).normal((4,))
    >>> bool((whole[2] == part[0]).all())
    True
    """

    def __init__(self, seed: int, indices) -> None:
        self.seed = int(seed) % 2**64
        self.indices = np.asarray(indices, dtype=np.uint64)
        self._draws = 0
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)

    def __len__(self) -> int:
        return len(self.indices)

    def _streams(self) -> Iterator[np.random.Generator]:
        """Yield the generator for each image, at the start of a new draw."""
        self._draws += 1
        state = np.random.Philox(key=0).state
        state["state"]["key"][0] = self.seed
        state["state"]["counter"][3] = self._draws
        for index in self.indices:
            state["state"]["key"][1] = index
            self._bits.state = state
            yield self._generator

    def normal(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Return standard normal float32 numbers of shape (N, *shape)."""
        out = np.empty((len(self), *shape), dtype=np.float32)
        rows = out.reshape(len(self), math.prod(shape))
        for row, generator in zip(rows, self._streams()):
            generator.standard_normal(out=row, dtype=np.float32)
        return out

    def uniform(
        self, shape: tuple[int, ...] = (), low: float = 0.0, high: float = 1.0
    ) -> np.ndarray:
        """Return uniform float32 numbers from [low, high), of shape (N, *shape)."""
        out = np.empty((len(self), *shape), dtype=np.float32)
        rows = out.reshape(len(self), math.prod(shape))
        for row, generator in zip(rows, self._streams()):
            generator.random(out=row, dtype=np.float32)
        if (low, high) != (0.0, 1.0):
            out *= np.float32(high - low)
            out += np.float32(low)
        return out

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Return int32 integers from [low, high), of shape (N, *shape)."""
        out = np.empty((len(self), *shape), dtype=np.int32)
        rows = out.reshape(len(self), math.prod(shape))
        for row, generator in zip(rows, self._streams()):
            row[:] = generator.integers(low, high, size=row.size, dtype=np.int32)
        return out

    def poisson(self, rate: np.ndarray) -> np.ndarray:
        """Return Poisson counts as float32, with means ``rate`` of shape (N, ...)."""
        out = np.empty(rate.shape, dtype=np.float32)
        for row, lam, generator in zip(out, rate, self._streams()):
            row[...] = generator.poisson(lam)
        return out


def stream_seed(seed: int, name: str, severity: int) -> int:
    """Return the seed of one kind and severity, so that their noise is independent."""
    words = [seed, zlib.crc32(name.encode()), severity]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
