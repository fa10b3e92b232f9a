"""Count gradient passes of a training, and match those of another one."""

import warnings
from bisect import bisect_left
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from skorch import NeuralNetClassifier

from sklearn_sharpbalance._validation import POSITIVE, check_numbers
from sklearn_sharpbalance.ensemble import DiversifiedEnsembleClassifier
from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.members.net import NET_DEFAULTS, is_sharpness_aware
from sklearn_sharpbalance.metrics._outputs import last_step
from sklearn_sharpbalance.training.net_building import resolve_sam
from sklearn_sharpbalance.training.plan import warmup_length
from sklearn_sharpbalance.training.prepare import prepare

# Number of made-up samples on which the fraction of a selection rule is estimated.
TRIAL_SAMPLES = 4000


def gradient_passes(estimator, X=None, y=None):
    r"""Count the passes over the training set of all members together.

    Parameters
    ----------
    estimator : SharpBalance, deep or diversified ensemble, or a pipeline around one
        Fitted or not.
    X, y : training data or None, default=None
        For an unfitted ensemble whose ``max_epochs`` or ``sam`` is None, since the
        defaults depend on the data. Transformers of a pipeline are fitted to them.
        Without data the defaults are 50 epochs and SAM.

    Returns
    -------
    float
        Number of forward and backward passes of one member over all training samples.
        For a fitted ensemble it counts the epochs that were run, including those after
        the best epoch of ``early_stopping``. For an unfitted one it is the number
        expected from its parameters.

    Notes
    -----
    An epoch of a member costs :math:`1 + s` with SAM for a fraction :math:`s` of the
    samples, 1 with Momentum-SAM and :math:`1 + s/k` with LookSAM. A fitted ensemble has
    counted its own sets. Before the fit they are estimated with scores drawn
    independently for each member; the sets of real members overlap more, and cost
    somewhat less. An epoch of a jointly trained member costs 1; samples without labels
    ("a2d", "divdis") add the fraction of the members that a step draws for them.
    Scoring the samples (about one pass per selection) is not counted.

    Examples
    --------
    >>> from sklearn_sharpbalance import (
    ...     DeepEnsembleClassifier, SharpBalanceEnsembleClassifier)
    >>> from sklearn_sharpbalance.evaluation import gradient_passes
    >>> gradient_passes(DeepEnsembleClassifier(n_estimators=3, max_epochs=50))
    150.0
    >>> gradient_passes(SharpBalanceEnsembleClassifier(selection="all", max_epochs=50))
    300.0
    """
    ensemble = _ensemble_of(estimator)
    if hasattr(ensemble, "history_"):
        return _passes_run(ensemble)
    cost = _Cost.of(ensemble, _params_of_fit(estimator, X, y))
    return cost.passes(cost.max_epochs)


def match_passes(estimator, passes, X=None, y=None):
    """Return parameters with which an ensemble takes about this many passes.

    Parameters
    ----------
    estimator : unfitted ensemble of this package, or a pipeline around one
    passes : float
        Number of passes, as :func:`gradient_passes` counts them.
    X, y : training data or None, default=None
        As in :func:`gradient_passes`.

    Returns
    -------
    params : dict
        ``max_epochs``, the number of epochs with the nearest cost. If the estimator
        has a number of warm-up epochs, also ``warmup_epochs``, which keeps its fraction
        of the training.

    Examples
    --------
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> from sklearn_sharpbalance.evaluation import match_passes
    >>> sam = SharpBalanceEnsembleClassifier(selection="all", max_epochs=50)
    >>> match_passes(sam, 150)
    {'max_epochs': 25}
    """
    check_numbers(POSITIVE, passes=passes)
    ensemble = _ensemble_of(estimator)
    cost = _Cost.of(ensemble, _params_of_fit(estimator, X, y))
    # An epoch of a member costs at least 1, so that no more epochs can be nearest.
    epochs = range(1, int(np.ceil(passes / cost.n_members)) + 1)
    first = bisect_left(epochs, passes, key=cost.passes)  # with that many passes
    nearest = epochs[max(first - 1, 0) : first + 1]
    n_epochs = min(nearest, key=lambda n: abs(cost.passes(n) - passes))
    params = {"max_epochs": n_epochs}
    if cost.is_warmup_count:
        params["warmup_epochs"] = cost.n_warmup(n_epochs)
    return params


class _Cost(NamedTuple):
    """Cost of an unfitted ensemble as a function of its number of epochs."""

    n_members: int
    max_epochs: int
    warmup_epochs: int | float  # a number of epochs, or their fraction
    warmup_cost: float  # of an epoch of one member
    later_cost: float

    @classmethod
    def of(cls, ensemble: Any, params: dict[str, Any]) -> "_Cost":
        if isinstance(ensemble, DiversifiedEnsembleClassifier):
            warmup_epochs = 0.0
            warmup_cost = later_cost = 1 + _unlabeled_fraction(ensemble)
        else:
            warmup_epochs = params["warmup_epochs"]
            sam_cost = _sam_cost(ensemble, params)
            warmup_cost = sam_cost if params["warmup"] == "sam" else 1.0
            later_cost = 1 + (sam_cost - 1) * _expected_fraction(ensemble, params)
        return cls(
            n_members=ensemble.n_estimators,
            max_epochs=params["max_epochs"],
            warmup_epochs=warmup_epochs,
            warmup_cost=warmup_cost,
            later_cost=later_cost,
        )

    @property
    def is_warmup_count(self) -> bool:
        """Whether the warm-up is a number of epochs, not their fraction."""
        return isinstance(self.warmup_epochs, Integral) and self.warmup_epochs > 0

    def n_warmup(self, n_epochs: int) -> int:
        """Return the warm-up epochs of a training; a number keeps its fraction."""
        if not self.is_warmup_count:
            return warmup_length(self.warmup_epochs, n_epochs)
        n_warmup = round(int(self.warmup_epochs) * n_epochs / self.max_epochs)
        return min(n_warmup, n_epochs)

    def passes(self, n_epochs: int) -> float:
        n_warmup = self.n_warmup(n_epochs)
        n_later = n_epochs - n_warmup
        of_member = self.warmup_cost * n_warmup + self.later_cost * n_later
        return float(self.n_members * of_member)


def _sam_cost(ensemble: Any, params: dict[str, Any]) -> float:
    """Return the expected passes of a sample with SAM, averaged over the members."""
    settings: dict[str, Any] = {}
    if isinstance(ensemble.estimator, NeuralNetClassifier):
        settings |= ensemble.estimator.get_params(deep=False)
    settings |= ensemble._nested("estimator")
    optimizer = params["optimizer"] or settings.get("optimizer")
    kind: Any = resolve_sam(params["sam"])
    if is_sharpness_aware(optimizer):
        kind = optimizer
    costs = []
    for own in params["member_params"] or [{}]:
        options = {
            name.removeprefix("optimizer__"): value
            for name, value in {**settings, **own}.items()
            if name.startswith("optimizer__")
        }
        costs.append(kind.passes_per_sample(options))
    return float(np.mean(costs))


def _expected_fraction(ensemble: Any, params: dict[str, Any]) -> float:
    """Return the fraction of SAM samples if members have independent scores."""
    n_members = params["n_estimators"]
    scores = np.random.default_rng(0).random((n_members, TRIAL_SAMPLES))
    masks = ensemble._selector(params).select(scores, random_state=0)
    return float(masks.mean())


def _unlabeled_fraction(ensemble: Any) -> float:
    """Return the fraction of the members that a step passes unlabelled samples to."""
    if not DIVERSITY_LOSSES[ensemble.loss].needs_unlabeled:
        return 0.0
    drawn = ensemble.pair_members or ensemble.n_estimators
    return min(1.0, drawn / ensemble.n_estimators)


def _passes_run(ensemble: Any) -> float:
    """Return the passes of a fitted ensemble."""
    if hasattr(ensemble, "n_passes_"):
        return float(ensemble.n_passes_)
    epoch_cost = 1 + _unlabeled_fraction(ensemble)
    return float(epoch_cost * ensemble.n_iter_ * len(ensemble.history_))


def _params_of_fit(estimator: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return the parameters of an ensemble with the step and the epochs of a fit."""
    ensemble = _ensemble_of(estimator)
    is_phased = isinstance(ensemble, PhasedEnsemble)
    params = ensemble._full_params() if is_phased else ensemble.get_params(deep=False)
    n_epochs = _epochs_given(ensemble)
    is_known = n_epochs is not None and params.get("sam", "sam") is not None
    if is_known or X is None or not is_phased:
        return params | {"max_epochs": n_epochs or int(NET_DEFAULTS["max_epochs"])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit warns, too
        while isinstance(estimator, Pipeline):
            if len(estimator) > 1:
                X = clone(estimator[:-1]).fit_transform(X, y)
            estimator = estimator[-1]
        unfitted = clone(ensemble).set_params(checkpoint_dir=None)
        prepared = prepare(unfitted, X, y, None)
    return prepared.params | {"max_epochs": prepared.trainer.training.n_epochs}


def _epochs_given(ensemble: Any) -> int | None:
    """Return the epochs of the ensemble or of its net; None if neither has any."""
    if ensemble.max_epochs is not None:
        return ensemble.max_epochs
    nested = ensemble._nested("estimator")
    if "max_epochs" in nested:
        return nested["max_epochs"]
    if isinstance(ensemble.estimator, NeuralNetClassifier):
        return ensemble.estimator.max_epochs
    return None


def counts_passes(estimator: Any) -> bool:
    """Return whether the passes of an estimator can be counted."""
    kinds = PhasedEnsemble | DiversifiedEnsembleClassifier
    return isinstance(last_step(estimator), kinds)


def _ensemble_of(estimator: Any) -> Any:
    """Return the ensemble at the end of a pipeline, or raise if it is another class."""
    ensemble = last_step(estimator)
    if not counts_passes(ensemble):
        raise InvalidInputError(
            "Gradient passes are counted for the ensembles of this package, got "
            f"{type(ensemble).__name__}."
        )
    return ensemble
