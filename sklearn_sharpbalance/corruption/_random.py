"""Random numbers that belong to a picture, not to its place in a batch."""

import math
import zlib
from collections.abc import Iterator

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["ImageRng", "resolve_seed", "stream_seed"]


class ImageRng:
    """One random stream per image.

    A draw for image ``indices[i]`` depends on the seed, on that index and on how
    many draws came before, never on the other images. Behind it is one Philox
    generator: its key is (seed, index), the high word of its counter the number of
    the draw, so that no state has to be kept per image.

    Parameters
    ----------
    seed : int
        Seed of all streams, taken modulo :math:`2^{64}`.
    indices : array-like of int of shape (N,)
        Which image each row is; non-negative.

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
        """The generator, set for each image in turn to the start of a new draw."""
        self._draws += 1
        fresh = np.random.Philox(key=0).state
        fresh["state"]["key"][0] = self.seed
        fresh["state"]["counter"][3] = self._draws
        for index in self.indices:
            fresh["state"]["key"][1] = index
            self._bits.state = fresh
            yield self._generator

    def normal(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Standard normal float32 numbers of shape (N, *shape)."""
        out = np.empty((len(self), *shape), dtype=np.float32)
        rows = out.reshape(len(self), math.prod(shape))
        for row, generator in zip(rows, self._streams()):
            generator.standard_normal(out=row, dtype=np.float32)
        return out

    def uniform(
        self, shape: tuple[int, ...] = (), low: float = 0.0, high: float = 1.0
    ) -> np.ndarray:
        """Uniform float32 numbers from [low, high), of shape (N, *shape)."""
        out = np.empty((len(self), *shape), dtype=np.float32)
        rows = out.reshape(len(self), math.prod(shape))
        for row, generator in zip(rows, self._streams()):
            generator.random(out=row, dtype=np.float32)
        if (low, high) != (0.0, 1.0):
            out *= np.float32(high - low)
            out += np.float32(low)
        return out

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Integers from [low, high) as int32, of shape (N, *shape)."""
        out = np.empty((len(self), *shape), dtype=np.int32)
        rows = out.reshape(len(self), math.prod(shape))
        for row, generator in zip(rows, self._streams()):
            row[:] = generator.integers(low, high, size=row.size, dtype=np.int32)
        return out

    def poisson(self, rate: np.ndarray) -> np.ndarray:
        """Poisson counts as float32 with means ``rate``, of shape (N, ...)."""
        out = np.empty(rate.shape, dtype=np.float32)
        for row, lam, generator in zip(out, rate, self._streams()):
            row[...] = generator.poisson(lam)
        return out


def resolve_seed(random_state) -> int:
    """An integer seed for None, an int, a Generator or a RandomState."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    raise InvalidInputError(
        f"random_state must be None, a non-negative int, a numpy Generator or a numpy "
        f"RandomState, got {random_state!r}."
    )


def stream_seed(seed: int, name: str, severity: int) -> int:
    """Seed of one kind and severity, so that no two of them share their noise."""
    words = [seed, zlib.crc32(name.encode()), severity]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
