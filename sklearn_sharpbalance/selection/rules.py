"""The selection rules of the paper, of its released code, and the baselines."""

from abc import abstractmethod
from numbers import Real

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.selection.base import SubsetSelector, own_random_state

__all__ = [
    "AllSelector",
    "NoneSelector",
    "RandomSelector",
    "ReferenceBoostSelector",
    "ReferenceUnionSelector",
    "SameSelector",
    "SharpBalanceSelector",
    "extreme_samples",
    "union_of_others",
]


def extreme_samples(sharpness, ratio, *, highest=True):
    """Mark each member's ``ratio * N`` highest (or lowest) scores.

    Ties at the border go to the sample that comes first.

    Parameters
    ----------
    sharpness : ndarray of shape (M, N)
        Score of each sample by each member.
    ratio : float
        Share of the samples to mark, in [0, 1], rounded to a whole number of samples.
    highest : bool, default=True
        Mark the highest scores, or the lowest.

    Returns
    -------
    masks : ndarray of shape (M, N), dtype bool

    Examples
    --------
    >>> import numpy as np
    >>> extreme_samples(np.array([[3.0, 1.0, 2.0, 0.0]]), 0.5)
    array([[ True, False,  True, False]])
    """
    check_ratio("ratio", ratio)
    sharpness = np.asarray(sharpness, dtype=np.float64)  # -x is none for unsigned x
    if sharpness.ndim != 2 or np.isnan(sharpness).any():
        raise InvalidInputError(
            "sharpness must be an array of shape (members, samples) without NaN, "
            f"which cannot be ranked; got shape {sharpness.shape} with "
            f"{np.isnan(sharpness).sum()} NaN."
        )
    n_members, n_samples = sharpness.shape
    k = round(ratio * n_samples)
    order = np.argsort(-sharpness if highest else sharpness, axis=1, kind="stable")
    masks = np.zeros((n_members, n_samples), dtype=bool)
    np.put_along_axis(masks, order[:, :k], True, axis=1)
    return masks


def union_of_others(masks):
    """For each member, the union of the other members' sets.

    Parameters
    ----------
    masks : ndarray of shape (M, N), dtype bool
        The set of each member.

    Returns
    -------
    unions : ndarray of shape (M, N), dtype bool
        Row i holds the samples that are in the set of any member but i.

    Examples
    --------
    >>> import numpy as np
    >>> union_of_others(np.array([[True, False], [False, True], [False, True]]))
    array([[False,  True],
           [ True,  True],
           [ True,  True]])
    """
    count = masks.sum(axis=0)  # (N,) how many members hold each sample
    return (count - masks) > 0  # (M, N)


def check_ratio(name, value):
    """Raise unless a share is a number in [0, 1]."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise InvalidInputError(
            f"{name} must be a number from 0 to 1, the share of the samples that a "
            f"member proposes; got {value!r}."
        )


class _RatioSelector(SubsetSelector):
    """What rules with a ``flat_ratio`` share."""

    def __init__(self, flat_ratio=0.4):
        self.flat_ratio = flat_ratio

    def check(self):
        """Raise if ``flat_ratio`` is no share."""
        check_ratio("flat_ratio", self.flat_ratio)
        super().check()


class SharpBalanceSelector(_RatioSelector):
    r"""Union of the other members' sharpest samples (the paper's text).

    .. math:: D_i^{SAM} = \bigcup_{j \ne i} \text{top-}k(s_j), \quad k = \text{flat\_ratio} \cdot N

    Parameters
    ----------
    flat_ratio : float, default=0.4
        Share of the samples that each member proposes to the others.

    Notes
    -----
    A single member has no others and gets an empty set: it trains by plain SGD.

    References
    ----------
    Lu et al., Sharpness-diversity tradeoff: improving flat ensembles with
    SharpBalance, NeurIPS 2024, section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> s = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    >>> SharpBalanceSelector(flat_ratio=0.5).select(s)
    array([[False, False,  True,  True],
           [ True,  True, False, False]])
    """  # noqa: E501

    def select(self, sharpness, *, random_state=None):
        """Union of the other members' highest scores; nothing is drawn."""
        self.check()
        return union_of_others(extreme_samples(sharpness, self.flat_ratio))


class _ReferenceSelector(_RatioSelector):
    """What the two rules of the released code share: lowest scores, dealt leftover."""

    @staticmethod
    @abstractmethod
    def _takes(dealt_to, member):
        """Whether ``member`` takes a leftover sample that was dealt to ``dealt_to``."""

    def select(self, sharpness, *, random_state=None):
        """Union of the other members' lowest scores and a part of the leftover."""
        self.check()
        lowest = extreme_samples(sharpness, self.flat_ratio, highest=False)
        masks = union_of_others(lowest)
        n_members = len(sharpness)
        leftover = np.flatnonzero(~lowest.any(axis=0))
        dealt_to = np.arange(len(leftover)) % n_members  # card by card, as released
        for i in range(n_members):
            masks[i, leftover[self._takes(dealt_to, i)]] = True
        return masks


class ReferenceUnionSelector(_ReferenceSelector):
    """The released code's rule for CIFAR-100 and TinyImageNet.

    Union of the other members' *lowest* scores, plus every M-th (offset i) of the
    samples that are in nobody's lowest set.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        Share of the samples that each member proposes to the others.
    """

    @staticmethod
    def _takes(dealt_to, member):
        return dealt_to == member


class ReferenceBoostSelector(_ReferenceSelector):
    """The released code's rule for CIFAR-10.

    Union of the other members' *lowest* scores, plus all of the samples in nobody's
    lowest set *except* every M-th with offset i.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        Share of the samples that each member proposes to the others.
    """

    @staticmethod
    def _takes(dealt_to, member):
        return dealt_to != member


class RandomSelector(_RatioSelector):
    """A random set per member, of the size that ``sharpbalance`` would have.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        As in :class:`SharpBalanceSelector`, whose set sizes are copied.
    """

    def select(self, sharpness, *, random_state=None):
        """Shuffle each row of the ``sharpbalance`` masks."""
        rng = own_random_state(random_state)
        masks = SharpBalanceSelector(self.flat_ratio).select(sharpness)
        return np.stack([rng.permutation(row) for row in masks])


class SameSelector(_RatioSelector):
    """One random set for all members, of the mean size under ``sharpbalance``.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        As in :class:`SharpBalanceSelector`, whose mean set size is copied.
    """

    def select(self, sharpness, *, random_state=None):
        """Draw once, repeat for every member."""
        rng = own_random_state(random_state)
        sizes = SharpBalanceSelector(self.flat_ratio).select(sharpness).sum(axis=1)
        mask = np.arange(sharpness.shape[1]) < round(sizes.mean())
        return np.tile(rng.permutation(mask), (len(sharpness), 1))


class AllSelector(SubsetSelector):
    """Every sample for every member: an ensemble trained by SAM."""

    needs_sharpness = False

    def select(self, sharpness, *, random_state=None):
        """All true."""
        return np.ones(sharpness.shape, dtype=bool)


class NoneSelector(SubsetSelector):
    """No sample for any member: a plain deep ensemble."""

    needs_sharpness = False

    def select(self, sharpness, *, random_state=None):
        """All false."""
        return np.zeros(sharpness.shape, dtype=bool)
