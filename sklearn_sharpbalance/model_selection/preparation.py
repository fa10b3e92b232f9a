"""Preparation of the fits of a search: data, settings, and how each is trained."""

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from joblib import hash as joblib_hash
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.engine.stacked import StackedEngine
from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble
from sklearn_sharpbalance.members.net import with_callbacks
from sklearn_sharpbalance.model_selection.sklearn_internals import rows_for_fit
from sklearn_sharpbalance.training.setup import FitSetup
from sklearn_sharpbalance.training.sharing import SharedTraining, sharing

__all__ = [
    "PlannedFit",
    "PreparedFit",
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
    training : {"stacked", "one by one", "ordinary"}
        In one computation with other fits; alone, but with warm-ups that it shares
        with other fits; or by its own ``fit``.
    reason : str
        Why it is not stacked; empty if it is.
    """

    candidate: int
    split: int
    training: str
    reason: str


@dataclass
class PreparedFit:
    """A fit of a search before its training.

    Attributes
    ----------
    plan : PlannedFit
    setup : FitSetup or None
        None if the fit is ordinary.
    failed : bool
        Whether its training has ended in an error.
    """

    plan: PlannedFit
    setup: FitSetup | None
    failed: bool = False


def prepare_fit(
    estimator,
    params,
    X,
    y,
    *,
    rows,
    fit_params,
    shared: SharedTraining,
    candidate: int,
    split: int,
) -> PreparedFit:
    """Prepare the fit of one candidate on one split.

    Parameters
    ----------
    estimator : estimator
        Not changed.
    params : dict
        Parameters of the candidate.
    X, y
        All samples.
    rows : ndarray of int
        Training samples of the split.
    fit_params : dict
        Arguments of ``fit`` for all samples.
    shared : SharedTraining
    candidate, split : int
        Positions of the candidate and of the split.
    """
    setup = None
    try:
        own = clone(estimator).set_params(**clone(params, safe=False))
        training, reason = "ordinary", not_trained_by_search(own)
        if reason is None:
            own_X, own_y, own_params = rows_for_fit(own, X, y, rows, fit_params)
            setup = _collected(own, own_X, own_y, fit_params=own_params, shared=shared)
            training, reason = _training_of(setup, shared)
    except Exception as error:  # the evaluation raises it again, or scores it
        training = "ordinary"
        reason = f"it cannot be prepared: {in_a_sentence(error)}"
    plan = PlannedFit(
        candidate=candidate, split=split, training=training, reason=reason
    )
    return PreparedFit(plan, setup=None if training == "ordinary" else setup)


def _collected(estimator, X, y, *, fit_params, shared):
    """Return the setup that ``fit`` of the ensemble would train."""
    shared.collecting = []
    try:
        with sharing(shared):
            if y is None:
                estimator.fit(X, **fit_params)
            else:
                estimator.fit(X, y, **fit_params)
        (setup,) = shared.collecting
    finally:
        shared.collecting = None
    return setup


def _training_of(setup, shared):
    """Return how a fit is trained, and why it is not stacked."""
    trainer = setup.trainer
    if setup.key is None:
        return "ordinary", "X is a Dataset"
    if trainer.memory is not shared:
        return "ordinary", "its parameter memory is set"
    if trainer.has_callbacks or with_callbacks(trainer.net).callbacks_:
        return "ordinary", "it has callbacks, which are called for its members only"
    if type(trainer.engine) is not StackedEngine:
        return "one by one", f"engine {setup.engine.name}: {setup.engine.reason}"
    return "stacked", ""


def not_trained_by_search(estimator):
    """Return why an estimator is not trained by the search; None if it is."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    if isinstance(estimator, PhasedEnsemble):
        return None
    return f"{type(estimator).__name__} does not train in phases"


def with_settings(estimator, checkpoint_dir=None):
    """Return a clone for the fits of a search, and settings that undo the changes.

    Parameters
    ----------
    estimator : estimator
        Not changed.
    checkpoint_dir : str, path-like or None, default=None
        Folder for the checkpoints of all fits, in one subfolder each.

    Returns
    -------
    estimator : estimator
        Its pipelines keep fitted transformers in memory.
    before : dict
        Settings of the given estimator, for ``set_params``.
    """
    own, step, prefix = clone(estimator), estimator, ""
    before: dict[str, Any] = {}
    while isinstance(step, Pipeline):
        if step.memory is None:
            before[f"{prefix}memory"] = None
        name, step = step.steps[-1]
        prefix = f"{prefix}{name}__"
    settings: dict[str, Any] = {name: TransformerCache() for name in before}
    if checkpoint_dir is not None and isinstance(step, PhasedEnsemble):
        before[f"{prefix}checkpoint_dir"] = step.checkpoint_dir
        folder = os.path.join(os.fspath(checkpoint_dir), "{fit}")
        settings[f"{prefix}checkpoint_dir"] = folder
    return own.set_params(**settings), before


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
