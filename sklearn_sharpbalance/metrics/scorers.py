"""The metrics as scorers for ``scoring=`` in a search or a cross-validation.

A scorer is called as ``scorer(estimator, X, y)`` and larger is always better: the name
starts with ``neg_`` if a smaller metric is better. ``make_scorer`` of scikit-learn is
not enough: it passes neither the members' outputs nor the class of each column.
"""

import inspect
from collections.abc import Callable
from typing import Any

from sklearn_sharpbalance._validation import check_choice
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import flatness
from sklearn_sharpbalance.metrics._outputs import reach_last_step
from sklearn_sharpbalance.metrics.calibration import expected_calibration_error
from sklearn_sharpbalance.metrics.diversity import (
    disagreement,
    disagreement_error_ratio,
    ensemble_improvement_rate,
    kl_diversity,
    unique_predictions,
    variance_diversity,
)
from sklearn_sharpbalance.metrics.likelihood import (
    negative_log_likelihood,
    nll_after_temperature,
)


def _member_probas(estimator, X):
    if not hasattr(estimator, "member_predict_proba"):
        raise InvalidInputError(
            f"{type(estimator).__name__} has no method member_predict_proba, which "
            "this scorer needs: use an ensemble of this package, or a scorer of "
            "probabilities such as 'neg_expected_calibration_error'."
        )
    return estimator.member_predict_proba(X)


def _of_members(metric, estimator, X, y, **options):
    return metric(_member_probas(estimator, X), **options)


def _of_labels_and_members(metric, estimator, X, y, **options):
    probas = _member_probas(estimator, X)
    return metric(y, probas, labels=estimator.classes_, **options)


def _of_ensemble(metric, estimator, X, y, **options):
    options = {"ensemble_proba": estimator.predict_proba(X), **options}
    return _of_labels_and_members(metric, estimator, X, y, **options)


def _of_labels_and_proba(metric, estimator, X, y, **options):
    proba = estimator.predict_proba(X)
    return metric(y, proba, labels=estimator.classes_, **options)


def _of_net(metric, estimator, X, y, **options):
    return metric(estimator, X, y, **options)


class EnsembleScorer:
    """A metric of this package as a scorer.

    Parameters
    ----------
    metric : callable
        A function of :mod:`sklearn_sharpbalance.metrics`.
    call : callable
        ``call(metric, estimator, X, y, **options)`` computes the metric.
    sign : {1, -1}
        -1 if smaller is better.
    **options
        More arguments of the metric, such as ``n_bins=10``.
    """

    def __init__(self, metric: Callable, call: Callable, sign: int = 1, **options):
        self.metric = metric
        self.call = call
        self.sign = sign
        self.options = options

    def __call__(self, estimator, X, y=None, sample_weight=None):
        """Return the score of a fitted estimator or pipeline; larger is better.

        The likelihood and the calibration error support ``sample_weight``; other
        metrics raise if it is passed.
        """
        options = self.options
        if sample_weight is not None:
            if not self._accept_sample_weight():
                raise InvalidInputError(
                    f"{self!r} does not support sample_weight. Call it without."
                )
            options = options | {"sample_weight": sample_weight}
        estimator, X = reach_last_step(estimator, X)
        value = self.call(self.metric, estimator, X, y, **options)
        return self.sign * float(value)

    def _accept_sample_weight(self) -> bool:
        """Return whether the metric supports sample weights.

        scikit-learn calls this method by its name.
        """
        return "sample_weight" in inspect.signature(self.metric).parameters

    def __repr__(self):
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"EnsembleScorer({self.metric.__name__}, sign={self.sign}{options})"


def _scorers(call: Callable, sign: int, *metrics: Callable, **options: Any) -> dict:
    """Return scorers of several metrics by name."""
    prefix = "neg_" if sign < 0 else ""
    return {
        prefix + metric.__name__: EnsembleScorer(metric, call, sign, **options)
        for metric in metrics
    }


OF_MEMBERS = disagreement, kl_diversity, unique_predictions, variance_diversity
OF_PROBA = expected_calibration_error, nll_after_temperature
OF_NET = [getattr(flatness, name) for name in flatness.__all__]
#: Scorers by name. Those of flatness use ``random_state=0``, so that all candidates of
#: a search are measured on the same samples.
SCORERS: dict[str, EnsembleScorer] = {
    **_scorers(_of_members, 1, *OF_MEMBERS),
    **_scorers(_of_labels_and_members, 1, disagreement_error_ratio),
    **_scorers(_of_ensemble, 1, ensemble_improvement_rate),
    **_scorers(_of_labels_and_proba, -1, *OF_PROBA),
    # Shorter than "neg_negative_log_likelihood".
    "neg_nll": EnsembleScorer(negative_log_likelihood, _of_labels_and_proba, -1),
    **_scorers(_of_net, -1, *OF_NET, random_state=0),
}


def get_scorer(name, **options):
    """Return the scorer of a metric, for ``scoring=`` in ``GridSearchCV`` and others.

    Parameters
    ----------
    name : str
        A key of ``SCORERS``.
    **options
        More arguments of the metric, such as ``n_bins=10`` or ``rho=0.1``.

    Returns
    -------
    EnsembleScorer
        Called as ``scorer(estimator, X, y)``; larger is better.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import get_scorer
    >>> get_scorer("disagreement")
    EnsembleScorer(disagreement, sign=1)
    """
    check_choice("scorer", name, sorted(SCORERS))
    scorer = SCORERS[name]
    options = {**scorer.options, **options}
    return EnsembleScorer(scorer.metric, scorer.call, scorer.sign, **options)
