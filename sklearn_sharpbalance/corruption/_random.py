"""Random numbers that depend on a picture's index, not on its batch."""

import math
import zlib
from collections.abc import Iterator

import numpy as np

__all__ = ["ImageRng", "stream_seed"]


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
