"""Base class of subset selectors, the rules of the paper and baselines."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from sklearn_sharpbalance._validation import (
    FROM_0_TO_1,
    check_call,
    check_numbers,
    check_random_state,
)
from sklearn_sharpbalance.exceptions import InvalidInputError


class SubsetSelector(BaseEstimator, ABC):
    """Base class of all rules that choose the SAM set of each member.

    A rule implements :meth:`select`. Set ``needs_sharpness = False`` on a rule that
    ignores the values of the scores, so that they are not computed. A rule with
    parameters may check them in :meth:`check`, which ``fit`` calls before training.
    """

    needs_sharpness: bool = True

    @abstractmethod
    def select(self, sharpness, *, random_state=None):
        """Choose the SAM set of each member.

        Parameters
        ----------
        sharpness : ndarray of shape (M, N)
            Score of each sample by each member; larger is sharper. A rule with
            ``needs_sharpness = False`` may only use the shape.
        random_state : int, RandomState instance or None, default=None
            Source of randomness for the rules that draw random sets.

        Returns
        -------
        masks : ndarray of shape (M, N), dtype bool
            True where the member applies SAM to the sample.
        """

    def check(self):
        """Raise if the rule cannot be used; ``fit`` calls this before training."""
        source = f"{type(self).__name__}.select"
        asked = "select(sharpness, random_state=...)"
        check_call(self.select, source, asked, None, random_state=None)


def check_masks(masks, shape: tuple[int, int], source: str) -> np.ndarray:
    """Return a copy of the masks that a rule named ``source`` returned; check them."""
    try:
        masks = np.asarray(masks)
    except ValueError:  # rows of unequal lengths
        masks = np.asarray(masks, dtype=object)
    if masks.shape != shape or masks.dtype != bool:
        # Zeros and ones are not accepted: their complement ``~masks`` is no mask.
        raise InvalidInputError(
            f"{source} must return a boolean array of the shape {shape} "
            f"(members, samples), got {masks.dtype} of shape {masks.shape}."
        )
    # Copy the masks, because a rule may write to the same array again.
    return np.array(masks, order="C")


class FunctionSelector(SubsetSelector):
    """Selector that calls a function.

    Parameters
    ----------
    func : callable
        ``func(sharpness, random_state) -> masks``, both of shape (M, N).

    Examples
    --------
    >>> rule = FunctionSelector(lambda sharpness, random_state: sharpness > 1)
    >>> rule.select(np.array([[0.0, 2.0]]))
    array([[False,  True]])
    """

    def __init__(self, func: Callable[[np.ndarray, Any], Any]):
        self.func = func

    def check(self):
        """Raise if the function does not take the arguments that it will get."""
        asked = "func(sharpness, random_state)"
        check_call(self.func, "A selection function", asked, None, None)

    def select(self, sharpness, *, random_state=None):
        """Call the function and check its result."""
        self.check()
        # Copy the scores, because the function may work in place.
        masks = self.func(sharpness.copy(), check_random_state(random_state))
        return check_masks(masks, sharpness.shape, "A selection function")


def extreme_samples(sharpness, ratio, *, highest=True):
    """Mark each member's ``ratio * N`` highest (or lowest) scores.

    Of samples with equal scores, the first are marked.

    Parameters
    ----------
    sharpness : ndarray of shape (M, N)
        Score of each sample by each member.
    ratio : float
        Fraction of the samples to mark, in [0, 1], rounded to a number of samples.
    highest : bool, default=True
        Mark the highest scores, or the lowest.

    Returns
    -------
    masks : ndarray of shape (M, N), dtype bool

    Examples
    --------
    >>> extreme_samples(np.array([[3.0, 1.0, 2.0, 0.0]]), 0.5)
    array([[ True, False,  True, False]])
    """
    check_numbers(FROM_0_TO_1, ratio=ratio)
    sharpness = np.asarray(sharpness, dtype=np.float64)  # unsigned -x would be wrong
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
    """Return, for each member, the union of the other members' sets.

    Parameters
    ----------
    masks : ndarray of shape (M, N), dtype bool
        The set of each member.

    Returns
    -------
    unions : ndarray of shape (M, N), dtype bool
        Row i marks the samples that are in the set of any member except i.

    Examples
    --------
    >>> union_of_others(np.array([[True, False], [False, True], [False, True]]))
    array([[False,  True],
           [ True,  True],
           [ True,  True]])
    """
    count = masks.sum(axis=0)  # (N,) in how many sets each sample is
    return (count - masks) > 0  # (M, N)


class _RatioSelector(SubsetSelector):
    """Base class of rules with a ``flat_ratio``."""

    def __init__(self, flat_ratio=0.4):
        self.flat_ratio = flat_ratio

    def check(self):
        """Raise if ``flat_ratio`` is not in [0, 1]."""
        check_numbers(FROM_0_TO_1, flat_ratio=self.flat_ratio)
        super().check()


def _flattest_sets(sharpness, flat_ratio):
    """Return the unions of the other members' lowest scores, and who gets the rest.

    Samples in no member's set of lowest scores are numbered in turn by members: the
    second mask (M, N) marks each for one member.
    """
    lowest = extreme_samples(sharpness, flat_ratio, highest=False)
    rest = np.flatnonzero(~lowest.any(axis=0))
    in_turn = np.zeros(lowest.shape, dtype=bool)
    in_turn[np.arange(len(rest)) % len(lowest), rest] = True
    return union_of_others(lowest), in_turn


class FlattestSelector(_RatioSelector):
    r"""Other members' flattest samples, and most of those that are flat for no one.

    .. math:: D_i^{SAM} = \bigcup_{j \ne i} \text{bottom-}k(s_j) \cup R_i, \quad k = \text{flat\_ratio} \cdot N

    where :math:`R_i` are the samples in no member's set of lowest scores, except every
    M-th with offset i. It is the rule of the paper's released code for CIFAR-10, and
    the default.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        Fraction of the samples that each member proposes to the others.

    Notes
    -----
    The paper's text selects the sharpest samples (:class:`SharpestSelector`), its code
    the flattest. On images the code's rule was ahead of the text's.

    A single member gets an empty set, so it trains without SAM.

    References
    ----------
    Lu et al., Sharpness-diversity tradeoff: improving flat ensembles with
    SharpBalance, NeurIPS 2024, and its released code.

    Examples
    --------
    >>> s = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    >>> FlattestSelector(flat_ratio=0.5).select(s)
    array([[ True,  True, False, False],
           [False, False,  True,  True]])
    """  # noqa: E501

    def select(self, sharpness, *, random_state=None):
        """Return the others' lowest scores and most samples of no set; not random."""
        self.check()
        unions, in_turn = _flattest_sets(sharpness, self.flat_ratio)
        return unions | (in_turn.any(axis=0) & ~in_turn)


class FlattestUnionSelector(_RatioSelector):
    """Other members' flattest samples, and some of those that are flat for no one.

    As :class:`FlattestSelector`, but of the samples in no member's set of lowest scores
    only every M-th with offset i. It is the rule of the paper's released code for
    CIFAR-100 and TinyImageNet.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        Fraction of the samples that each member proposes to the others.
    """

    def select(self, sharpness, *, random_state=None):
        """Return the others' lowest scores and some samples of no set; not random."""
        self.check()
        unions, in_turn = _flattest_sets(sharpness, self.flat_ratio)
        return unions | in_turn


class SharpestSelector(_RatioSelector):
    r"""Union of the other members' sharpest samples (the paper's text).

    .. math:: D_i^{SAM} = \bigcup_{j \ne i} \text{top-}k(s_j), \quad k = \text{flat\_ratio} \cdot N

    Parameters
    ----------
    flat_ratio : float, default=0.4
        Fraction of the samples that each member proposes to the others.

    Notes
    -----
    A single member gets an empty set, so it trains without SAM. The rule is that of
    section 4.3 of the paper (see :class:`FlattestSelector`).

    Examples
    --------
    >>> s = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    >>> SharpestSelector(flat_ratio=0.5).select(s)
    array([[False, False,  True,  True],
           [ True,  True, False, False]])
    """  # noqa: E501

    def select(self, sharpness, *, random_state=None):
        """Return the union of the other members' highest scores; not random."""
        self.check()
        return union_of_others(extreme_samples(sharpness, self.flat_ratio))


class RandomSelector(_RatioSelector):
    """A random set for each member, of the size that ``sharpest`` gives.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        As in :class:`SharpestSelector`, which determines the set sizes.
    """

    def select(self, sharpness, *, random_state=None):
        """Shuffle each row of the ``sharpest`` masks."""
        rng = check_random_state(random_state)
        masks = SharpestSelector(self.flat_ratio).select(sharpness)
        return np.stack([rng.permutation(row) for row in masks])


class SameSelector(_RatioSelector):
    """One random set for all members, of the mean size that ``sharpest`` gives.

    Parameters
    ----------
    flat_ratio : float, default=0.4
        As in :class:`SharpestSelector`, which determines the set size.
    """

    def select(self, sharpness, *, random_state=None):
        """Draw one set and repeat it for every member."""
        rng = check_random_state(random_state)
        sizes = SharpestSelector(self.flat_ratio).select(sharpness).sum(axis=1)
        mask = np.arange(sharpness.shape[1]) < round(sizes.mean())
        return np.tile(rng.permutation(mask), (len(sharpness), 1))


class AllSelector(SubsetSelector):
    """Every sample for every member: an ensemble trained by SAM."""

    needs_sharpness = False

    def select(self, sharpness, *, random_state=None):
        """Return masks that are True everywhere."""
        return np.ones(sharpness.shape, dtype=bool)


class NoneSelector(SubsetSelector):
    """No sample for any member: a plain deep ensemble."""

    needs_sharpness = False

    def select(self, sharpness, *, random_state=None):
        """Return masks that are False everywhere."""
        return np.zeros(sharpness.shape, dtype=bool)


def selects_all(selection) -> bool:
    """Return whether a ``selection`` parameter makes a SAM ensemble."""
    by_name = isinstance(selection, str) and selection == "all"
    return by_name or isinstance(selection, AllSelector)
