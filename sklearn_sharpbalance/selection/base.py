"""Base class of subset selectors, and functions as selectors."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from sklearn_sharpbalance._validation import check_call, check_random_state
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["FunctionSelector", "SubsetSelector", "check_masks"]


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
    """Return a copy of the masks that a rule returned; raise if they are invalid.

    Parameters
    ----------
    masks : array-like
    shape : tuple of int
        Numbers of members and samples.
    source : str
        Name of the rule in the error message.
    """
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
    >>> import numpy as np
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
