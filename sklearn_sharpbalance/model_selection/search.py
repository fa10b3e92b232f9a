"""A search over settings of an ensemble whose fits train together."""

from os import PathLike
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.model_selection import check_cv as checked_cv
from sklearn.model_selection._search import BaseSearchCV  # no public name

from sklearn_sharpbalance._validation import POSITIVE_INTEGER
from sklearn_sharpbalance.model_selection.preparation import (
    PlannedFit,
    not_trained_by_search,
    prepare_fit,
    routed_params,
    with_settings,
)
from sklearn_sharpbalance.model_selection.store import ResultStore
from sklearn_sharpbalance.model_selection.together import epochs_bar, train_together


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
        From 1 on a progress bar shows the epochs of the stacked fits. scikit-learn
        prints more about each fit from 2 on.
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
        For each candidate and split: how it is trained ("stacked", "ordinary"), and
        why it is not stacked.
    cv_results_ : dict
        As in ``GridSearchCV``. ``fit_time`` does not include the training, which fits
        share.
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
    Other fits are trained by ``fit``, one after the other, and share warm-ups.

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
        with TemporaryDirectory() as folder:
            self.estimator, before = with_settings(
                self.estimator, store, folder, self.checkpoint_dir
            )
            self._drawn = self._candidates()
            try:
                self.cv = self._splits(X, y, params)
                self._train(X, y, params, store)
                super().fit(X, y, **params)
            finally:
                self.__dict__.update(given)
                del self._drawn
        if self.refit:
            best = self.best_estimator_
            for name in before.keys() & best.get_params().keys():
                if name not in self.best_params_:
                    best.set_params(**{name: before[name]})
        return self

    def _splits(self, X, y, params):
        """Return the training and test samples of all splits."""
        X, y, _, split_params = routed_params(self, X, y, params)
        cv = checked_cv(self.cv, y, classifier=is_classifier(self.estimator))
        return list(cv.split(X, y, **split_params))

    def _train(self, X, y, params, store):
        """Train all fits that can be stacked; ``fit`` then finds them in the store."""
        X, y, fit_params, _ = routed_params(self, X, y, params)
        self.plan_, fits = [], []
        for i, candidate in enumerate(self._drawn):
            for k, (rows, _) in enumerate(self.cv):
                prepared, reason = prepare_fit(
                    self.estimator,
                    candidate,
                    X,
                    y,
                    rows=rows,
                    fit_params=fit_params,
                    store=store,
                )
                training = "ordinary" if prepared is None else "stacked"
                self.plan_.append(PlannedFit(i, k, training, reason))
                fits += [] if prepared is None else [prepared]
        if not fits:
            return
        self.n_jobs = None  # the store is in this process
        n_epochs = sum(fit.trainer.training.n_epochs for fit in fits)
        text = f"{len(self._drawn)} candidates x {len(self.cv)} folds"
        with epochs_bar(text, n_epochs, show=self.verbose > 0) as on_epochs:
            train_together(fits, store, on_epochs)

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
        """Evaluate the candidates, as ``fit`` of scikit-learn asks for."""
        drawn = vars(self).get("_drawn")
        evaluate_candidates(self._candidates() if drawn is None else drawn)
