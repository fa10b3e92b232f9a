"""Which samples each member sharpens: the door, and functions as selectors."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from sklearn_sharpbalance._validation import check_call
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["FunctionSelector", "SubsetSelector", "check_masks", "own_random_state"]


class SubsetSelector(BaseEstimator, ABC):
    """Base of all rules that choose the SAM set of each member.

    A rule is one method, :meth:`select`. Set ``needs_sharpness = False`` on a rule
    that ignores the values of the scores, so that nobody computes them. A rule with
    settings may look at them in :meth:`check`, which ``fit`` calls before any work.
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
            Source of randomness for the rules that draw.

        Returns
        -------
        masks : ndarray of shape (M, N), dtype bool
            True where the member applies SAM to the sample.
        """

    def check(self):
        """Raise if the rule cannot be asked; what a fit asks before its warm-up."""
        source = f"{type(self).__name__}.select"
        asked = "select(sharpness, random_state=...)"
        check_call(self.select, source, asked, None, random_state=None)


def own_random_state(random_state) -> np.random.RandomState:
    """A generator to draw from; None makes a new one, and leaves NumPy's alone."""
    if random_state is None:
        return np.random.RandomState()
    return check_random_state(random_state)


def check_masks(masks, shape: tuple[int, int], source: str) -> np.ndarray:
    """What a rule returned, as it must be; also of a rule that a user wrote.

    Parameters
    ----------
    masks : array-like
    shape : tuple of int
        Members and samples.
    source : str
        Whose masks they are, for the message.
    """
    try:
        masks = np.asarray(masks)
    except ValueError:  # rows of unequal lengths
        masks = np.asarray(masks, dtype=object)
    if masks.shape != shape or masks.dtype != bool:
        # Zeros and ones would pass, and their complement is no mask.
        raise InvalidInputError(
            f"{source} must return a boolean array of the shape {shape} "
            f"(members, samples), got {masks.dtype} of shape {masks.shape}."
        )
    # A copy: a rule may fill the same array again, and the masks are kept.
    return np.array(masks, order="C")


class FunctionSelector(SubsetSelector):
    """A plain function as a selector.

    Parameters
    ----------
    func : callable
        ``func(sharpness, random_state) -> masks``, both of shape (M, N).

    Examples
    --------
    >>> import numpy as np
    >>> rule = FunctionSelector(lambda sharpness, random_state: sharpness > 1)
    >>> rule.select(np.array([[0.0, 2.0]]))
    array([[False,  True]])
    """

    def __init__(self, func: Callable[[np.ndarray, Any], Any]):
        self.func = func

    def check(self):
        """Raise if the function does not take what it will get."""
        asked = "func(sharpness, random_state)"
        check_call(self.func, "A selection function", asked, None, None)

    def select(self, sharpness, *, random_state=None):
        """Call the function and check what it returns."""
        self.check()
        # A copy: the function may work in place, and the scores are kept.
        masks = self.func(sharpness.copy(), own_random_state(random_state))
        return check_masks(masks, sharpness.shape, "A selection function")
