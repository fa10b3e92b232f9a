"""Base class of sharpness scorers, and functions as scorers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_call, check_numbers
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError


class SharpnessScorer(BaseEstimator, ABC):
    """Base class of all scorers.

    A scorer implements :meth:`score_samples`. Calling the scorer runs that method and
    checks its result.

    Attributes
    ----------
    degree : float
        If the loss of a sample is multiplied by ``c``, its score is multiplied by
        ``c ** degree``: 1 for a loss, 2 for a squared gradient. Sample weights multiply
        the scores accordingly.
    needs_float32 : bool
        Whether an ensemble runs the scorer in float32 even if its ``precision`` is
        lower. Set it on a scorer that computes small differences between passes, which
        are below the rounding errors of bf16, fp16 or tf32.
    """

    degree: float = 1
    needs_float32: bool = False

    @abstractmethod
    def score_samples(self, net, X, y):
        """Score each sample; larger is sharper.

        Parameters
        ----------
        net : NeuralNetClassifier
            An initialised skorch net. Run its module in eval mode, and leave it
            unchanged.
        X : array, tensor, dict of those, or Dataset
            N samples, as the net takes them, not augmented. An ensemble passes
            tensors on the net's device, or on the host if they need more than half of
            the device's free memory; ``net.infer`` moves them. The members train on
            the same tensors: a scorer that changes them must copy them first.
        y : array or tensor of shape (N,)
            Class codes.

        Returns
        -------
        scores : ndarray of shape (N,)
            Finite.
        """

    def check(self):
        """Raise if the scorer cannot be used; ``fit`` calls this before training."""
        source = f"{type(self).__name__}.score_samples"
        asked = "score_samples(net, X, y)"
        check_call(self.score_samples, source, asked, None, None, None)

    def __call__(self, net, X, y):
        """Score each sample and check that the scores are finite, one per sample."""
        scores = as_array(self.score_samples(net, X, y))
        n = len(X) if y is None else len(y)
        if scores.shape != (n,):
            raise InvalidInputError(
                f"{self!r} must return one score per sample, an array of shape "
                f"({n},). Got shape {scores.shape}."
            )
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise DivergenceError(
                f"{self!r} returned {len(bad)} scores that are not finite, the first "
                f"for sample {bad[0]}: {scores[bad[0]]}. If the network has diverged, "
                "lower `lr` or `rho`; otherwise look for such values in X."
            )
        return scores


class NetScorer(SharpnessScorer):
    """Base class of scorers that are a function of the net with their parameters.

    Attributes
    ----------
    function : callable
        ``function(net, X, y, **params)`` returns N scores, for the scorer's parameters.
    """

    function: Callable[..., torch.Tensor]

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        super().check()
        check_numbers(POSITIVE_INTEGER, chunk_size=self.chunk_size)

    def score_samples(self, net, X, y):
        """Score each sample by the function; see the base class."""
        return as_array(type(self).function(net, X, y, **self.get_params()))


class FunctionScorer(SharpnessScorer):
    """Scorer that calls a function.

    Parameters
    ----------
    func : callable
        ``func(net, X, y)`` returns N scores.
    degree : float, default=1
        See :class:`SharpnessScorer`.

    Examples
    --------
    >>> scorer = FunctionScorer(lambda net, X, y: X.sum(1))
    >>> scorer(None, np.ones((2, 3)), np.zeros(2))
    array([3., 3.])
    """

    def __init__(self, func: Callable[[Any, Any, Any], Any], degree: float = 1):
        self.func = func
        self.degree = degree

    def check(self):
        """Raise if the function does not take the arguments that it will get."""
        asked = "func(net, X, y)"
        check_call(self.func, "A sharpness function", asked, None, None, None)

    def score_samples(self, net, X, y):
        """Call the function."""
        return as_array(self.func(net, X, y))


def is_of_package(scorer) -> bool:
    """Whether a scorer is one of this package, which reads samples slice by slice."""
    of_package = type(scorer).__module__.startswith("sklearn_sharpbalance.")
    return of_package and not isinstance(scorer, FunctionScorer)


def as_array(scores: Any) -> np.ndarray:
    """Return scores as a float64 array."""
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().cpu().double()  # numpy has no bfloat16
    try:
        return np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            "A sharpness scorer must return one number per sample, as an array, a "
            f"tensor or a list of numbers. Got a {type(scores).__name__}: {error}"
        ) from error
