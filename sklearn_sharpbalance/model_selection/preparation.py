"""Preparation of the fits of a search: data, settings, and how each is trained."""

import os
from typing import Any, NamedTuple

from joblib import hash as joblib_hash
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.model_selection.sklearn_internals import rows_for_fit
from sklearn_sharpbalance.model_selection.store import ResultStore, why_not_shared
from sklearn_sharpbalance.runtime.process import own_torch_modes
from sklearn_sharpbalance.training.prepare import Prepared, prepare

__all__ = [
    "PlannedFit",
    "TransformerCache",
    "not_trained_by_search",
    "prepare_fit",
    "with_settings",
]


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


def prepare_fit(
    estimator,
    params,
    X,
    y,
    *,
    rows,
    fit_params,
    store: ResultStore,
    candidate: int,
    split: int,
) -> tuple[PlannedFit, Prepared | None]:
    """Prepare the fit of one candidate on one split, if it can be stacked.

    Parameters
    ----------
    estimator : estimator
        From :func:`with_settings`; not changed.
    params : dict
        Parameters of the candidate.
    X, y
        All samples.
    rows : ndarray of int
        Training samples of the split.
    fit_params : dict
        Arguments of ``fit`` for all samples.
    store : ResultStore
    candidate, split : int
        Positions of the candidate and of the split.
    """
    prepared, reason = None, ""
    try:
        own = clone(estimator).set_params(**clone(params, safe=False))
        own_X, own_y, own_params = rows_for_fit(own, X, y, rows, fit_params)
        ensemble, own_X, own_params = last_step(own, own_X, own_y, own_params)
        with own_torch_modes():
            prepared = prepare(
                ensemble, own_X, own_y, own_params.pop("sample_weight", None)
            )
        reason = _why_not_stacked(prepared, store)
        prepared.trainer.data = store.one_of_equal(prepared.trainer.data)
    except Exception as error:  # the evaluation raises it again, or scores it
        reason = f"it cannot be prepared: {in_a_sentence(error)}"
    training = "ordinary" if reason else "stacked"
    plan = PlannedFit(
        candidate=candidate, split=split, training=training, reason=reason
    )
    return plan, None if reason else prepared


def last_step(estimator, X, y, fit_params):
    """Return the ensemble at the end of a pipeline, and what its ``fit`` gets.

    Parameters
    ----------
    estimator : estimator
        Steps of a pipeline before the last one are fitted.
    X, y
        Training samples.
    fit_params : dict
        Further arguments of ``fit``; those of a pipeline have the name of the step as
        a prefix.
    """
    while isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        others = [key for key in fit_params if not key.startswith(f"{name}__")]
        if others:
            raise InvalidInputError(f"{', '.join(others)} is for another step")
        fit_params = {k.removeprefix(f"{name}__"): v for k, v in fit_params.items()}
        before = Pipeline(
            [*estimator.steps[:-1], (name, "passthrough")], memory=estimator.memory
        )
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


def with_settings(estimator, store, checkpoint_dir=None):
    """Return a clone for the fits of a search, and settings that undo the changes.

    Parameters
    ----------
    estimator : estimator
        Not changed.
    store : ResultStore
        Cache of the ensembles, unless they have their own.
    checkpoint_dir : str, path-like or None, default=None
        Folder for the checkpoints of all fits, in one subfolder each.

    Returns
    -------
    estimator : estimator
        Its pipelines keep fitted transformers in memory.
    before : dict
        Settings of the given estimator, for ``set_params``.
    """
    step, prefix = estimator, ""
    settings: dict[str, Any] = {}
    while isinstance(step, Pipeline):
        if step.memory is None:
            settings[f"{prefix}memory"] = TransformerCache()
        name, step = step.steps[-1]
        prefix = f"{prefix}{name}__"
    if isinstance(step, PhasedEnsemble):
        if step.memory is None:
            settings[f"{prefix}memory"] = store
        if checkpoint_dir is not None:
            folder = os.path.join(os.fspath(checkpoint_dir), "{fit}")
            settings[f"{prefix}checkpoint_dir"] = folder
    params = estimator.get_params()
    before = {name: params[name] for name in settings}
    return clone(estimator).set_params(**settings), before


class TransformerCache:
    """Keeps fitted transformers in memory, in the place of a joblib.Memory.

    All clones of a pipeline share it, so that a transformer is fitted once for each
    split of a search.
    """

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}

    def __sklearn_clone__(self):
        """Return itself, for the clones of a pipeline."""
        return self

    def __getstate__(self):
        """Return the attributes without results: a process has its own."""
        return {"_results": {}}

    def cache(self, function, ignore=None, **options):
        """Return a function whose results are kept by a hash of its arguments.

        Parameters
        ----------
        function : callable
        ignore : list of str or None, default=None
            Keyword arguments that do not change the result.
        **options
            Those of a joblib.Memory; not used.
        """

        def cached_function(*args, **kwargs):
            relevant = {k: v for k, v in kwargs.items() if k not in (ignore or ())}
            key = joblib_hash((function.__qualname__, args, relevant))
            if key not in self._results:
                self._results[key] = function(*args, **kwargs)
            return self._results[key]

        return cached_function
