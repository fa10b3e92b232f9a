"""A search over settings of an ensemble whose fits train together."""

import warnings
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.model_selection import check_cv as checked_cv

from sklearn_sharpbalance._validation import POSITIVE_INTEGER
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.model_selection.preparation import (
    PlannedFit,
    SearchFit,
    not_trained_by_search,
    prepare_fit,
    with_settings,
)
from sklearn_sharpbalance.model_selection.progress import SearchProgress
from sklearn_sharpbalance.model_selection.sklearn_internals import (
    BaseSearchCV,
    routed_params,
)
from sklearn_sharpbalance.model_selection.store import ResultStore
from sklearn_sharpbalance.model_selection.together import (
    train_one_by_one,
    train_together,
)

__all__ = ["EnsembleSearchCV"]


class EnsembleSearchCV(BaseSearchCV):
    """Search over settings of an ensemble, trained as one computation.

    A drop-in for scikit-learn's ``GridSearchCV``, and with ``n_iter`` for
    ``RandomizedSearchCV``: same candidates, same folds, same scores, same refitted
    ensemble, up to rounding. Members of all candidates and folds train stacked in one
    batched computation, and training that candidates have in common, such as the
    warm-up of all values of ``flat_ratio``, is done once for each fold.

    Parameters
    ----------
    estimator : estimator
        ``SharpBalanceEnsembleClassifier``, ``DeepEnsembleClassifier``, or a
        ``Pipeline`` that ends with one of them; its earlier steps are fitted once for
        each fold. Other estimators are fitted as by scikit-learn.
    param_grid : dict or list of dict
        Lists of values by the name of the parameter. With ``n_iter`` also
        distributions, objects with a method ``rvs``.
    n_iter : int or None, default=None
        Number of candidates that are drawn at random; None tries all combinations.
    scoring : str, callable, list, tuple, dict or None, default=None
        As in ``GridSearchCV``.
    n_jobs : int or None, default=None
        Processes for fits that the search does not train itself. It has no effect if
        some fits are stacked: all fits then run in this process.
    refit : bool, str or callable, default=True
        As in ``GridSearchCV``.
    cv : int, cross-validation generator, iterable or None, default=None
        As in ``GridSearchCV``.
    verbose : int, default=0
        From 1 on a progress bar is shown: epochs of all fits, and the best score so
        far. scikit-learn prints more about each fit from 2 on.
    pre_dispatch : int or str, default="2*n_jobs"
        As in ``GridSearchCV``.
    random_state : int, RandomState instance or None, default=None
        For the candidates of ``n_iter``.
    error_score : "raise" or float
        As in ``GridSearchCV``; NaN by default.
    return_train_score : bool, default=False
        As in ``GridSearchCV``.
    checkpoint_dir : str, path-like or None, default=None
        Folder for checkpoints of all fits. A search that was killed continues from it
        if it is run again with the same data and settings.

    Attributes
    ----------
    plan_ : list of PlannedFit
        For each candidate and split: how it is trained ("stacked", "one by one",
        "ordinary"), and why it is not stacked.
    cv_results_ : dict
        As in ``GridSearchCV``. ``fit_time`` does not include the training, which fits
        share. After Ctrl-C it has the candidates that were complete.
    best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_, classes_, n_features_in_, feature_names_in_
        As in ``GridSearchCV``.

    Notes
    -----
    Fits are stacked if they have the same network, batch size, optimizer and schedule:
    they may differ in data, seeds, ``rho``, ``flat_ratio``, ``selection``,
    ``sharpness``, ``class_weight`` and ``aggregation``, and, with SGD, Adam or AdamW,
    in ``lr`` and weight decay. Candidates that differ in other settings, such as the
    size of the network, form several groups.
    Networks that cannot be stacked train one after the other, and share warm-ups.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SharpBalanceEnsembleClassifier(max_epochs=4, random_state=0)
    >>> grid = {"rho": [0.02, 0.1], "flat_ratio": [0.2, 0.6]}
    >>> search = EnsembleSearchCV(clf, grid, cv=2).fit(X, y)
    >>> len(search.cv_results_["params"]), len(search.plan_)
    (4, 8)
    >>> search.plan_[0].training
    'stacked'
    """

    estimator: Any
    cv: Any
    n_jobs: Any
    _parameter_constraints: dict = {
        **BaseSearchCV._parameter_constraints,
        "param_grid": [dict, list],
        "n_iter": [POSITIVE_INTEGER, None],
        "random_state": ["random_state"],
        "checkpoint_dir": [str, PathLike, None],
    }

    def __init__(
        self,
        estimator,
        param_grid,
        *,
        n_iter=None,
        scoring=None,
        n_jobs=None,
        refit=True,
        cv=None,
        verbose=0,
        pre_dispatch="2*n_jobs",
        random_state=None,
        error_score=np.nan,
        return_train_score=False,
        checkpoint_dir=None,
    ):
        super().__init__(
            estimator=estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.param_grid = param_grid
        self.n_iter = n_iter
        self.random_state = random_state
        self.checkpoint_dir = checkpoint_dir

    def fit(self, X, y=None, **params):
        """Evaluate all candidates, and refit the best one.

        Parameters
        ----------
        X : array-like of shape (N, ...)
            Samples, as in ``fit`` of the estimator.
        y : array-like of shape (N,), default=None
            Labels.
        **params
            Passed to ``fit`` of the estimator and to the splitter, as in
            ``GridSearchCV``: ``sample_weight``, ``groups``.

        Returns
        -------
        self : estimator instance
        """
        self._validate_params()
        reason = not_trained_by_search(self.estimator)
        if reason is not None:
            super().fit(X, y, **params)
            self.plan_ = [
                PlannedFit(i, k, "ordinary", reason)
                for i in range(len(self.cv_results_["params"]))
                for k in range(self.n_splits_)
            ]
            return self
        given = {name: getattr(self, name) for name in ("estimator", "cv", "n_jobs")}
        # scikit-learn's fit reads these attributes; they are put back at its end.
        store = ResultStore()
        self.estimator, before = with_settings(
            self.estimator, store, self.checkpoint_dir
        )
        if hasattr(self.cv, "__next__"):
            self.cv = list(self.cv)
        try:
            self._search = _Search.prepare(self, X, y, params, store)
            if any(fit.prepared is not None for fit in self._search.fits):
                self.n_jobs = None
            self.plan_ = [fit.plan for fit in self._search.fits]
            super().fit(X, y, **params)
        except KeyboardInterrupt:
            self._keep_evaluated()
            raise
        finally:
            self.__dict__.update(given)
            self.__dict__.pop("_search", None)
        if self.refit:
            best = self.best_estimator_
            for name in before.keys() & best.get_params().keys():
                if name not in self.best_params_:
                    best.set_params(**{name: before[name]})
        return self

    def _candidates(self):
        """Return the settings of all candidates."""
        if self.n_iter is None:
            return list(ParameterGrid(self.param_grid))
        return list(
            ParameterSampler(
                self.param_grid, self.n_iter, random_state=self.random_state
            )
        )

    def _run_search(self, evaluate_candidates):
        """Train and evaluate the candidates, as ``fit`` of scikit-learn asks for."""
        search = vars(self).get("_search")
        if search is None:
            evaluate_candidates(self._candidates())
        else:
            metric = self.refit if isinstance(self.refit, str) else "score"
            search.run(evaluate_candidates, metric=metric)

    def _keep_evaluated(self):
        """Set the results of the candidates that are complete, after Ctrl-C."""
        search = vars(self).get("_search")
        if search is None or search.results is None:
            return
        self.cv_results_ = search.results
        warnings.warn(
            "The search was interrupted. cv_results_ has the results of "
            f"{len(search.results['params'])} of {len(search.candidates)} candidates.",
            SharpBalanceWarning,
            stacklevel=3,
        )


class _Search:
    """One run of a search: its candidates, splits and fits.

    Parameters
    ----------
    candidates : list of dict
    splits : list of (train, test)
    fits : list of SearchFit
        One for each candidate and split; splits vary faster.
    store : ResultStore
    show : bool
        Whether to show a progress bar.

    Attributes
    ----------
    results : dict or None
        As ``cv_results_``, of the candidates that are evaluated.
    """

    def __init__(self, candidates, splits, fits, store, show):
        self.candidates, self.splits, self.fits = candidates, splits, fits
        self.store, self.show = store, show
        self.results = None

    @classmethod
    def prepare(cls, search, X, y, params, store):
        """Return a run whose fits are prepared, but not trained.

        Parameters
        ----------
        search : EnsembleSearchCV
        X, y
            Arguments of its ``fit``.
        params : dict
            Further arguments of it.
        store : ResultStore
        """
        X, y, fit_params, split_params = routed_params(search, X, y, params)
        classifier = is_classifier(search.estimator)
        cv = checked_cv(search.cv, y, classifier=classifier)
        splits = list(cv.split(X, y, **split_params))
        candidates = search._candidates()
        fits = [
            prepare_fit(
                search.estimator,
                candidate,
                X,
                y,
                rows=train,
                fit_params=fit_params,
                store=store,
                candidate=i,
                split=k,
            )
            for i, candidate in enumerate(candidates)
            for k, (train, _) in enumerate(splits)
        ]
        return cls(candidates, splits, fits, store, show=search.verbose > 0)

    def fits_of(self, candidate: int) -> list[SearchFit]:
        """Return the fits of a candidate."""
        n_splits = len(self.splits)
        return self.fits[candidate * n_splits : (candidate + 1) * n_splits]

    def run(self, evaluate_candidates, metric):
        """Train all fits, and let scikit-learn evaluate them.

        Parameters
        ----------
        evaluate_candidates : callable
            Of scikit-learn: fits and scores candidates. Here ``fit`` of an ensemble
            takes what was trained for it before.
        metric : str
            Name of the score for the progress bar.
        """
        n_epochs = sum(
            fit.prepared.trainer.training.n_epochs
            for fit in self.fits
            if fit.prepared is not None
        )
        progress = SearchProgress(
            len(self.candidates), len(self.splits), n_epochs, show=self.show
        )
        cv = checked_cv(self.splits)

        def evaluate(candidates):
            if candidates:
                self.results = evaluate_candidates(
                    [self.candidates[i] for i in candidates], cv=cv
                )
                progress.evaluated(self.results, metric)
            self.store.forget(f.last_key for i in candidates for f in self.fits_of(i))

        waiting: list[int] = []  # candidates that are trained but not evaluated
        with progress.shown():
            try:
                train_together(self._of("stacked"), self.store, progress)
                for i in range(len(self.candidates)):
                    own = [f for f in self._of("one by one") if f.plan.candidate == i]
                    train_one_by_one(own, self.store, progress)
                    waiting.append(i)
                    if own and self._is_complete(i):
                        ready = self._before_last_complete(waiting)
                        evaluate(ready)
                        waiting = waiting[len(ready) :]
            except KeyboardInterrupt:
                evaluate([i for i in waiting if self._is_complete(i)])
                raise
            finally:
                self.store.on_device.clear()
            evaluate(waiting)

    def _of(self, training):
        return [fit for fit in self.fits if fit.plan.training == training]

    def _is_complete(self, candidate):
        """Whether all fits of a candidate are trained without an error."""
        fits = self.fits_of(candidate)
        return all(fit.prepared is not None and not fit.failed for fit in fits)

    def _before_last_complete(self, waiting):
        """Return the candidates to evaluate now.

        scikit-learn raises if all fits that it evaluates at once have failed. So the
        last complete candidate is kept back for the next evaluation.
        """
        complete = [n for n, i in enumerate(waiting) if self._is_complete(i)]
        return waiting[: complete[-1]] if len(complete) > 1 else []
