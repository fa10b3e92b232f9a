"""Small searches, and the comparison with scikit-learn's."""

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.model_selection import EnsembleSearchCV

SMALL = {
    "n_estimators": 2,
    "max_epochs": 4,
    "batch_size": 16,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (6,),
}


def table(n=70, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.7)
    return X, np.array(["a", "b", "c"])[y]


def ensemble(**params):
    return SharpBalance(**(SMALL | params))


class KeepFits:
    """A scoring function that keeps every fitted estimator."""

    def __init__(self):
        self.fitted = []

    def __call__(self, estimator, X, y):
        self.fitted.append(estimator)
        return float(estimator.predict_proba(X).max(axis=1).mean())


def both_searches(estimator, grid, X, y, *, cv=3, fit_params=None, **options):
    """Return the fitted search, scikit-learn's, and the estimators of both."""
    searches = []
    for kind in (EnsembleSearchCV, GridSearchCV):
        keep = KeepFits()
        search = kind(clone(estimator), grid, cv=cv, scoring=keep, **options)
        search.fit(X, y, **(fit_params or {}))
        searches.append((search, keep.fitted))
    (ours, our_fits), (theirs, their_fits) = searches
    assert len(our_fits) == len(their_fits)
    return ours, theirs, list(zip(our_fits, their_fits))


def assert_same_ensembles(ours, theirs, atol=1e-4):
    """Members, masks, scores and histories are equal up to rounding."""
    for own, other in zip(ours.estimators_, theirs.estimators_, strict=True):
        weights, expected = own.module_.state_dict(), other.module_.state_dict()
        assert weights.keys() == expected.keys()
        for name, value in weights.items():
            np.testing.assert_allclose(value.cpu(), expected[name].cpu(), atol=atol)
    np.testing.assert_array_equal(ours.sam_masks_, theirs.sam_masks_)
    if theirs.sharpness_ is None:
        assert ours.sharpness_ is None
    else:
        np.testing.assert_allclose(ours.sharpness_, theirs.sharpness_, rtol=1e-2)
    for own, other in zip(ours.history_, theirs.history_, strict=True):
        assert [record["phase"] for record in own] == [r["phase"] for r in other]
        for name in other[0].keys() - {"dur"}:
            if name != "phase":
                np.testing.assert_allclose(
                    [record[name] for record in own],
                    [record[name] for record in other],
                    atol=atol,
                )
    assert ours.n_iter_ == theirs.n_iter_
    assert ours.n_passes_ == theirs.n_passes_
    assert ours.member_seeds_ == theirs.member_seeds_
    np.testing.assert_array_equal(ours.train_indices_, theirs.train_indices_)


def assert_same_search(ours, theirs, fits=()):
    """Results and all fitted ensembles are equal up to rounding."""
    assert ours.cv_results_.keys() == theirs.cv_results_.keys()
    for key, expected in theirs.cv_results_.items():
        if key.endswith("_time") or key.startswith("rank_"):
            continue
        if key == "params":
            assert ours.cv_results_[key] == expected
        elif key.startswith("param_"):
            assert list(ours.cv_results_[key]) == list(expected)
        else:
            np.testing.assert_allclose(ours.cv_results_[key], expected, atol=1e-4)
    for own, other in fits:
        assert_same_ensembles(own, other)
