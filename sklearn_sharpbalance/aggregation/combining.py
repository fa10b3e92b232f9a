"""Combine members of which only the probabilities are known."""

from typing import Any

import numpy as np

from sklearn_sharpbalance.aggregation.rules import (
    AGGREGATIONS,
    Aggregation,
    BestMemberAggregation,
    GreedySoupAggregation,
    UniformSoupAggregation,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["combine_probas"]

_RULES_ON_NETS = (
    BestMemberAggregation,
    GreedySoupAggregation,
    UniformSoupAggregation,
)


def combine_probas(member_probas: Any, aggregation: Any = "mean_logit") -> np.ndarray:
    """Return the probabilities of the ensemble from those of its members.

    Parameters
    ----------
    member_probas : array-like of shape (M, N, C)
    aggregation : str, Aggregation or callable, default="mean_logit"
        A rule on predictions. A rule that is fitted to held-out samples, such as
        "temperature", must be the ``aggregation_`` of a fitted ensemble.

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
    return _rule_on_predictions(aggregation)(logits)


def _rule_on_predictions(aggregation: Any) -> Aggregation:
    """Return the rule; a given object is not cloned, to keep its fitted attributes."""
    if isinstance(aggregation, Aggregation):
        rule = aggregation
    else:
        rule = AGGREGATIONS.resolve(aggregation)
    is_fitted = any(name.endswith("_") for name in vars(rule))
    if isinstance(rule, _RULES_ON_NETS) or (rule.needs_validation and not is_fitted):
        raise InvalidInputError(
            f"aggregation={aggregation!r} cannot combine probabilities alone: it needs "
            "the members' weights or held-out samples. Use 'mean_logit', 'mean_proba' "
            "or 'majority', pass a function, or for a temperature pass the "
            "aggregation_ of a fitted ensemble."
        )
    return rule
