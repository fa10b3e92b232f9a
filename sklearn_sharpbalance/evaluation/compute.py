"""What a training costs, and how long another one may take for the same cost."""

from numbers import Integral
from typing import Any

import numpy as np
from skorch import NeuralNetClassifier

from sklearn_sharpbalance.ensemble import DiversifiedEnsembleClassifier
from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.members.net import NET_DEFAULTS
from sklearn_sharpbalance.metrics._outputs import last_step
from sklearn_sharpbalance.training.plan import warmup_length

__all__ = ["gradient_passes", "match_passes"]

# Made-up samples on which a selection rule is tried out for its share.
TRIAL_SAMPLES = 4000


def gradient_passes(estimator):
    r"""Passes over the training set that an ensemble takes, all members together.

    Parameters
    ----------
    estimator : SharpBalance, deep or diversified ensemble, or a pipeline around one
        Fitted or not.

    Returns
    -------
    float
        In units of one forward and backward pass over all training samples by one
        member. For a fitted ensemble it is what was run, epochs after the best one of
        ``early_stopping`` included; before, what its parameters promise.

    Notes
    -----
    An epoch of a member costs :math:`1 + s`, with :math:`s` the share of the samples
    to which it applies SAM, since those are passed twice: 1 in an epoch of plain
    descent, 2 of SAM (warm-up with ``warmup="sam"``, ``selection="all"``), in between
    in the balanced phase. A fitted ensemble has counted its own sets. Before the fit
    they are not known: the rule is tried on scores that members draw
    independently. Real members find similar samples sharp, so that a union of their
    sets, and with it the cost, comes out somewhat smaller.

    Jointly trained members cost 1; samples without labels ("a2d", "divdis") add the
    share of the members that a step draws for them. Scoring the samples (about one
    pass a selection) is not counted.

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
    return _Cost(ensemble).passes(_max_epochs(ensemble))


def match_passes(estimator, passes):
    """Parameters with which an ensemble takes about so many passes.

    Parameters
    ----------
    estimator : unfitted ensemble of this package, or a pipeline around one
    passes : float
        As :func:`gradient_passes` counts.

    Returns
    -------
    params : dict
        ``max_epochs``, the number with the nearest cost, and ``warmup_epochs`` where
        the estimator has a count of them: it keeps its share of the training.

    Examples
    --------
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> from sklearn_sharpbalance.evaluation import match_passes
    >>> sam = SharpBalanceEnsembleClassifier(selection="all", max_epochs=50)
    >>> match_passes(sam, 150)
    {'max_epochs': 25}
    """
    ensemble = _ensemble_of(estimator)
    cost = _Cost(ensemble)
    most = max(1, int(np.ceil(passes / cost.n_members)))  # an epoch costs at least 1
    candidates = np.arange(1, most + 1)
    costs = np.array([cost.passes(int(n)) for n in candidates])
    n_epochs = int(candidates[np.abs(costs - passes).argmin()])
    params = {"max_epochs": n_epochs}
    if cost.warmup_count is not None:
        params["warmup_epochs"] = cost.n_warmup(n_epochs)
    return params


class _Cost:
    """Cost of an unfitted ensemble as a function of its number of epochs."""

    def __init__(self, ensemble: Any):
        self.n_members = ensemble.n_estimators
        self.warmup, self.warmup_count = 0.0, None
        if isinstance(ensemble, DiversifiedEnsembleClassifier):
            self.first = self.later = 1 + _unlabeled_share(ensemble)
            return
        params = ensemble._full_params()
        self.warmup = params["warmup_epochs"]
        self.first = 2.0 if params["warmup"] == "sam" else 1.0
        self.later = 1 + _expected_share(ensemble, params)
        if isinstance(self.warmup, Integral) and self.warmup > 0:
            self.warmup_count, self.n_given = int(self.warmup), _max_epochs(ensemble)

    def n_warmup(self, n_epochs: int) -> int:
        if self.warmup_count is None:
            return warmup_length(self.warmup, n_epochs)
        return min(round(self.warmup_count * n_epochs / self.n_given), n_epochs)

    def passes(self, n_epochs: int) -> float:
        n_warmup = self.n_warmup(int(n_epochs))
        each = self.first * n_warmup + self.later * (n_epochs - n_warmup)
        return float(self.n_members * each)


def _expected_share(ensemble: Any, params: dict[str, Any]) -> float:
    """Share of SAM samples that a rule gives members with independent scores."""
    n_members = params["n_estimators"]
    scores = np.random.default_rng(0).random((n_members, TRIAL_SAMPLES))
    masks = ensemble._selector(params).select(scores, random_state=0)
    return float(masks.mean())


def _unlabeled_share(ensemble: Any) -> float:
    """Share of the members that pass a batch of unlabelled samples in a step."""
    if not DIVERSITY_LOSSES[ensemble.loss].needs_unlabeled:
        return 0.0
    drawn = ensemble.pair_members or ensemble.n_estimators
    return min(1.0, drawn / ensemble.n_estimators)


def _passes_run(ensemble: Any) -> float:
    """Passes that a fitted ensemble has counted, or those of its epochs."""
    if hasattr(ensemble, "n_passes_"):
        return float(ensemble.n_passes_)
    if isinstance(ensemble, DiversifiedEnsembleClassifier):
        each = 1 + _unlabeled_share(ensemble)
        return float(each * ensemble.n_iter_ * len(ensemble.history_))
    first = 2.0 if ensemble._full_params()["warmup"] == "sam" else 1.0
    total = 0.0
    for epochs, mask in zip(ensemble.history_, ensemble.sam_masks_):
        n_warmup = sum(record["phase"] == "warmup" for record in epochs)
        total += first * n_warmup + (1 + mask.mean()) * (len(epochs) - n_warmup)
    return float(total)


def _max_epochs(ensemble: Any) -> int:
    """Epochs that a fit would run, by the same defaults."""
    if ensemble.max_epochs is not None:
        return ensemble.max_epochs
    nested = ensemble._nested("estimator")
    if "max_epochs" in nested:
        return nested["max_epochs"]
    if isinstance(ensemble.estimator, NeuralNetClassifier):
        return ensemble.estimator.max_epochs
    return int(NET_DEFAULTS["max_epochs"])


def counts_passes(estimator: Any) -> bool:
    """Whether the cost of an estimator is known."""
    kinds = PhasedEnsemble | DiversifiedEnsembleClassifier
    return isinstance(last_step(estimator), kinds)


def _ensemble_of(estimator: Any) -> Any:
    ensemble = last_step(estimator)
    if not counts_passes(ensemble):
        raise InvalidInputError(
            "Gradient passes are counted for the ensembles of this package, got "
            f"{type(ensemble).__name__}."
        )
    return ensemble
