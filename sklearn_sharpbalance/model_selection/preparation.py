"""Preparation of the fits of a search: data, settings, and how each is trained.

A search prepares its fits before scikit-learn evaluates them, with the same rows and
the same arguments of ``fit``. scikit-learn has no public function for this.
"""

import os
from typing import Any, NamedTuple

from joblib import Memory
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, indexable

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.model_selection.store import ResultStore, why_not_shared
from sklearn_sharpbalance.runtime.process import own_torch_modes
from sklearn_sharpbalance.training.prepare import Prepared, prepare


class PlannedFit(NamedTuple):
    """How a search trains one fit.

    Attributes
    ----------
    candidate, split : int
        Positions of the candidate and of the split.
    training : {"stacked", "ordinary"}
        In one computation with other fits, or by its own ``fit``, which takes warm-ups
        that other fits have trained.
    reason : str
        Why it is not stacked; empty if it is.
    """

    candidate: int
    split: int
    training: str
    reason: str


def routed_params(search, X, y, params):
    """Return X, y, the arguments of ``fit`` of the estimator and of ``split`` of cv."""
    X, y = indexable(X, y)
    params = _check_method_params(X, params=params)
    routed = search._get_routed_params_for_fit(params)
    return X, y, dict(routed.estimator.fit), dict(routed.splitter.split)


def prepare_fit(
    estimator, params, X, y, *, rows, fit_params, store: ResultStore
) -> tuple[Prepared | None, str]:
    """Return the prepared fit of a candidate on a split, or None and the reason.

    It is None if the fit is not stacked with others. The training samples of the split
    are the ``rows`` of X, y and the arrays in ``fit_params``.
    """
    try:
        own = clone(estimator).set_params(**clone(params, safe=False))
        own_params = _check_method_params(X, params=fit_params, indices=rows)
        own_X, own_y = _safe_split(own, X, y, rows)
        ensemble, own_X, own_params = last_step(own, own_X, own_y, own_params)
        with own_torch_modes():
            weight = own_params.pop("sample_weight", None)
            prepared = prepare(ensemble, own_X, own_y, weight)
        reason = _why_not_stacked(prepared, store)
        prepared.trainer.data = store.one_of_equal(prepared.trainer.data)
    except Exception as error:  # the evaluation raises it again, or scores it
        return None, f"it cannot be prepared: {in_a_sentence(error)}"
    return None if reason else prepared, reason


def last_step(estimator, X, y, fit_params):
    """Return the ensemble at the end of a pipeline, and what its ``fit`` gets."""
    while isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        others = [key for key in fit_params if not key.startswith(f"{name}__")]
        if others:
            raise InvalidInputError(f"{', '.join(others)} is for another step")
        fit_params = {k.removeprefix(f"{name}__"): v for k, v in fit_params.items()}
        steps = [*estimator.steps[:-1], (name, "passthrough")]
        before = Pipeline(steps, memory=estimator.memory)
        X, estimator = before.fit_transform(X, y), last
    return estimator, X, fit_params


def _why_not_stacked(prepared, store) -> str:
    """Return why a fit is not stacked with others; empty if it is."""
    trainer = prepared.trainer
    if trainer.memory is not store:
        return "its parameter memory is set"
    if trainer.has_callbacks:
        return "it has callbacks, which are called for its members only"
    reason = why_not_shared(trainer.net, trainer.data)
    if not reason and type(trainer.engine) is not StackedEngine:
        reason = f"engine {prepared.engine.name}: {prepared.engine.reason}"
    return reason


def not_trained_by_search(estimator):
    """Return why an estimator is not trained by the search; None if it is."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    if isinstance(estimator, PhasedEnsemble):
        return None
    return f"{type(estimator).__name__} does not train in phases"


def with_settings(estimator, store, folder, checkpoint_dir=None):
    """Return a clone for the fits of a search, and settings that undo the changes.

    Its ensembles have the store as ``memory``, and its pipelines a cache of fitted
    transformers in a folder, unless they have their own. Checkpoints of each fit go to
    a subfolder of ``checkpoint_dir``.
    """
    step, prefix = estimator, ""
    settings: dict[str, Any] = {}
    while isinstance(step, Pipeline):
        if step.memory is None:
            settings[f"{prefix}memory"] = Memory(folder, verbose=0)
        name, step = step.steps[-1]
        prefix = f"{prefix}{name}__"
    if step.memory is None:
        settings[f"{prefix}memory"] = store
    if checkpoint_dir is not None:
        fits = os.path.join(os.fspath(checkpoint_dir), "{fit}")
        settings[f"{prefix}checkpoint_dir"] = fits
    params = estimator.get_params()
    before = {name: params[name] for name in settings}
    return clone(estimator).set_params(**settings), before
