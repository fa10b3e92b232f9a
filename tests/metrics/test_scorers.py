"""Scorers: signs, names, labels, pipelines, searches, and their metrics."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import SCORERS, get_scorer
from tests.metrics.nets import ensemble_of, mlp, samples
from tests.metrics.test_flatness import MEASURES

OF_MEMBERS = ["disagreement", "kl_diversity", "unique_predictions"]
OF_MEMBERS += ["variance_diversity"]
OF_LABELS = ["disagreement_error_ratio", "ensemble_improvement_rate"]
OF_PROBA = ["expected_calibration_error", "nll", "nll_after_temperature"]
PREDICTIONS = OF_MEMBERS + OF_LABELS + [f"neg_{name}" for name in OF_PROBA]


class Ensemble(ClassifierMixin, BaseEstimator):
    """Logistic regressions on bootstrap samples; averages logits, not probabilities."""

    def __init__(self, n_members=3, C=1.0):
        self.n_members = n_members
        self.C = C

    def fit(self, X, y):
        rng = np.random.default_rng(0)
        self.classes_ = np.unique(y)
        self.members_ = []
        for _ in range(self.n_members):
            rows = rng.integers(len(y), size=len(y) // 3)
            self.members_.append(LogisticRegression(C=self.C).fit(X[rows], y[rows]))
        return self

    def member_predict_proba(self, X):
        return np.stack([member.predict_proba(X) for member in self.members_])

    def predict_proba(self, X):
        mean = np.exp(np.log(self.member_predict_proba(X)).mean(axis=0))
        return mean / mean.sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class Weighted(Ensemble):
    """Take sample weights and ignore them."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y)


def small_network(n_classes=3):
    """Take images with channels first: the ensemble must convert them."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(
        240, n_informative=5, n_classes=3, class_sep=0.6, random_state=0
    )
    return X, np.array(["red", "green", "blue"])[y]


@pytest.fixture(scope="module")
def fitted(data):
    return Ensemble().fit(*data)


def test_scorers_of_predictions_are_the_signed_metrics(fitted, data):
    X, y = data
    codes = np.searchsorted(fitted.classes_, y)
    members, proba = fitted.member_predict_proba(X), fitted.predict_proba(X)
    expected = {name: getattr(metrics, name)(members) for name in OF_MEMBERS}
    expected |= {
        "disagreement_error_ratio": metrics.disagreement_error_ratio(codes, members),
        "ensemble_improvement_rate": metrics.ensemble_improvement_rate(
            codes, members, ensemble_proba=proba
        ),
        "neg_expected_calibration_error": -metrics.expected_calibration_error(
            codes, proba
        ),
        "neg_nll": -metrics.negative_log_likelihood(codes, proba),
        "neg_nll_after_temperature": -metrics.nll_after_temperature(codes, proba),
    }
    assert set(expected) == set(PREDICTIONS)
    for name, value in expected.items():
        score = SCORERS[name](fitted, X, y)
        assert isinstance(score, float)
        assert score == pytest.approx(value) != 0, name


def test_scorers_of_flatness_are_the_negated_metrics():
    classes = np.array(["ant", "bee", "cat", "dog"])
    ensemble = ensemble_of([mlp(seed=s) for s in range(2)], classes)
    X, y = samples(20)
    for metric in MEASURES:
        expected = metric(ensemble, X, classes[y], random_state=0)
        assert SCORERS[f"neg_{metric.__name__}"](ensemble, X, classes[y]) == -expected
    assert len(SCORERS) == len(PREDICTIONS) + len(MEASURES)


def test_options_are_passed_to_the_metric(fitted, data):
    X, y = data
    scorer = get_scorer("neg_expected_calibration_error", n_bins=3, strategy="quantile")
    expected = metrics.expected_calibration_error(
        y,
        fitted.predict_proba(X),
        n_bins=3,
        strategy="quantile",
        labels=fitted.classes_,
    )
    assert scorer(fitted, X, y) == -expected
    assert "n_bins=3" in repr(scorer)
    assert SCORERS["neg_expected_calibration_error"].options == {}
    sharp = get_scorer("neg_adaptive_sharpness", rho=0.1)
    assert sharp.options == {"random_state": 0, "rho": 0.1}


def test_estimators_without_members_raise(data):
    X, y = data
    single = LogisticRegression().fit(X, y)
    assert SCORERS["neg_nll"](single, X, y) < 0
    with pytest.raises(
        InvalidInputError, match="LogisticRegression has no method member"
    ):
        SCORERS["disagreement"](single, X, y)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((20,), id="table", marks=pytest.mark.slow),
        pytest.param((5, 4, 1), id="pictures"),
    ],
)
def test_ensembles_of_the_package(data, shape):
    X, y = data
    X = X[:90].reshape(90, *shape)
    y = y[:90]
    ensemble = DeepEnsembleClassifier(
        MLP if len(shape) == 1 else small_network,
        n_estimators=2,
        max_epochs=2,
        random_state=0,
        device="cpu",
    )
    model = make_pipeline(FunctionTransformer(), ensemble).fit(X, y)
    options = {
        "neg_adaptive_sharpness": {"n_iter": 3, "n_batches": 2},
        "neg_hessian_trace": {"n_probes": 2},
        "neg_sam_sharpness": {"n_draws": 3},
    }
    for name in SCORERS:
        score = get_scorer(name, **options.get(name, {}))(model, X, y)
        assert np.isfinite(score), name


def test_scorers_can_be_pickled():
    for scorer in SCORERS.values():
        assert repr(pickle.loads(pickle.dumps(scorer))) == repr(scorer)


def test_unknown_names_raise():
    with pytest.raises(InvalidInputError, match=r"Unknown scorer 'ece'.*'neg_nll'"):
        get_scorer("ece")


def test_metrics_of_members_raise_for_weights(data):
    X, y = data
    scorer, fitted = get_scorer("disagreement"), Ensemble().fit(X, y)
    with pytest.raises(InvalidInputError, match=r"disagreement.* does not support"):
        scorer(fitted, X, y, sample_weight=np.ones(len(y)))
    with sklearn.config_context(enable_metadata_routing=True):
        assert cross_validate(fitted, X, y, scoring=scorer)["test_score"].min() > 0


def test_a_weighted_search_passes_weights_to_scorers_that_support_them(data):
    X, y = data
    weight = np.random.default_rng(0).random(len(y))
    scoring = {
        "ours": get_scorer("neg_nll"),
        "theirs": "neg_log_loss",
        "spread": get_scorer("disagreement"),
    }
    grid = {"C": [0.1, 1.0]}
    search = GridSearchCV(Weighted(), grid, scoring=scoring, refit=False, cv=2)
    with pytest.warns(UserWarning, match="spread=.* does not support sample_weight"):
        found = search.fit(X, y, sample_weight=weight).cv_results_
    np.testing.assert_allclose(found["mean_test_ours"], found["mean_test_theirs"])
    assert (found["mean_test_spread"] > 0).all()
