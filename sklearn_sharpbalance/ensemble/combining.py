"""Members that are known by their probabilities alone, combined."""

from typing import Any

import numpy as np

from sklearn_sharpbalance.ensemble.aggregation import AGGREGATIONS

__all__ = ["combine_probas"]


def combine_probas(member_probas: Any, aggregation: Any = "mean_logit") -> np.ndarray:
    """Probabilities of the ensemble, from those of its members.

    Parameters
    ----------
    member_probas : array-like of shape (M, N, C)
    aggregation : str, Aggregation or callable, default="mean_logit"

    Returns
    -------
    proba : ndarray of shape (N, C)

    Examples
    --------
    >>> combine_probas([[[0.5, 0.5]], [[0.9, 0.1]]])  # sqrt(9) to 1
    array([[0.75, 0.25]])
    """
    probas = np.asarray(member_probas, dtype=np.float64)
    logits = np.log(np.maximum(probas, np.finfo(np.float64).tiny))
    return AGGREGATIONS.resolve(aggregation)(logits)
