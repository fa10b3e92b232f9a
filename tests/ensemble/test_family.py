"""Every method of the papers can be fitted, searched, saved and compared."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import sklearn_sharpbalance
from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from tests.cases import SMALL, rest_slow

FEW = SMALL | {"max_epochs": 6}


def deep(**params):
    return DeepEnsembleClassifier(**FEW, **params)


def balanced(**params):
    return SharpBalanceEnsembleClassifier(**FEW, **params)


def joint(loss):
    return DiversifiedEnsembleClassifier(loss=loss, **FEW)


METHODS = {
    "deep ensemble": deep(),
    "diverse hyper-parameters": deep(member_params=[{"lr": 0.07}, {"lr": 0.2}]),
    "EoA": deep(weight_averaging="exponential"),
    "uniform soup": deep(aggregation="uniform_soup"),
    "SAM ensemble": balanced(selection="all"),
    "SAM+": balanced(selection="all", rho=[0.02, 0.2]),
    "SharpBalance": balanced(),
    "SharpBalance with GSAM": balanced(sam="gsam"),
    "SharpBalance with ASAM": balanced(sam="asam"),
    "SharpBalance with FriendlySAM": balanced(sam="friendly_sam"),
    "Momentum-SAM ensemble": balanced(selection="all", sam="momentum_sam"),
    "SharpBalance with Momentum-SAM": balanced(sam="momentum_sam"),
    "SharpBalance with LookSAM": balanced(sam="look_sam"),
    "SED": joint("sed"),
    "naive A2D": joint("a2d"),
    "DivDis": joint("divdis"),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5)).astype(np.float32)
    y = (X[:, 0] + 0.5 * rng.normal(size=120) > 0).astype(int) + (X[:, 1] > 1)
    return X, y, X[::2] + 1


def fit_params(name, unlabeled):
    """Return further arguments of ``fit``."""
    return {"X_unlabeled": unlabeled} if name in ("naive A2D", "DivDis") else {}


DIFFERENT = {
    *("DivDis", "EoA", "Momentum-SAM ensemble", "SAM+", "SED", "SharpBalance"),
    *("diverse hyper-parameters", "uniform soup", "SharpBalance with FriendlySAM"),
    "SharpBalance with LookSAM",
}


@pytest.mark.parametrize("name", rest_slow(METHODS, DIFFERENT))
def test_every_method_fits_and_is_restored(name, data, tmp_path):
    X, y, unlabeled = data
    clf = clone(METHODS[name]).fit(X, y, **fit_params(name, unlabeled))
    assert clf.engine_.name == "stacked"
    assert clf.member_predict_proba(X).shape == (2, 120, 3)
    assert clf.score(X, y) > 0.5
    clf.save(tmp_path / "model")
    again = sklearn_sharpbalance.load(tmp_path / "model")
    for twin in (pickle.loads(pickle.dumps(clf)), again):
        np.testing.assert_array_equal(twin.predict_proba(X), clf.predict_proba(X))
    if "SAM" in name:  # the file has the momentum and the step counts, too
        np.testing.assert_array_equal(
            again.partial_fit(X, y).predict_proba(X),
            clf.partial_fit(X, y).predict_proba(X),
        )
        assert again.n_passes_ == clf.n_passes_
