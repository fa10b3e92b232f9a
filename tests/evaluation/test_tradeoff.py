"""Parameter studies of the trade-off."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.evaluation import tradeoff_curve
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.evaluation.cases import sharpbalance

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_tradeoff_curve_equals_a_loop(data):
    X, y = data
    sam = sharpbalance(selection="all", max_epochs=3)
    curve = tradeoff_curve(
        sam,
        X[:100],
        y[:100],
        rho=[0.01, 0.5],
        other={"estimator__module__hidden": [(4,), (8, 4)], "max_epochs": [2]},
        seeds=[5],
        X_test=X[100:],
        y_test=y[100:],
        sharpness={"n_batches": 2, "n_iter": 5},
    )
    assert len(curve) == 4
    parameters = ["rho", "estimator__module__hidden", "max_epochs"]
    assert list(curve.columns[:4]) == [*parameters, "seed"]
    for i in (0, 3):
        row = curve.iloc[i].to_dict()
        params = {name: row[name] for name in parameters}
        clf = sharpbalance(selection="all", **params, random_state=row["seed"])
        clf.fit(X[:100], y[:100])
        probas = clf.member_predict_proba(X[100:])
        flat = metrics.adaptive_sharpness(
            clf, X[:100], y[:100], n_batches=2, n_iter=5, random_state=0
        )
        assert row["sharpness"] == pytest.approx(flat)
        assert row["ensemble_accuracy"] == clf.score(X[100:], y[100:])
        der = metrics.disagreement_error_ratio(y[100:], probas)
        assert row["disagreement_error_ratio"] == pytest.approx(der)
        assert row["kl_diversity"] == pytest.approx(metrics.kl_diversity(probas))


def test_tradeoff_curve_of_a_pipeline_varies_its_last_step(data):
    X, y = data
    X = 100 * X
    settings = {"rho": [0.05, 0.5], "sharpness": {"n_batches": 1, "n_iter": 2}}
    few = sharpbalance(max_epochs=2, n_estimators=2)
    alone = tradeoff_curve(few, scaled(X), y, **settings)
    inside = make_pipeline(FunctionTransformer(scaled), few)
    nested = make_pipeline(FunctionTransformer(), inside)
    for pipeline in (inside, nested):
        found = tradeoff_curve(pipeline, X, y, **settings)
        pd.testing.assert_frame_equal(found, alone, rtol=1e-5)
    with pytest.raises(InvalidInputError, match="LogisticRegression has no parameter"):
        tradeoff_curve(make_pipeline(LogisticRegression()), X, y, rho=[0.1])


def scaled(X):
    return X / 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": []}, "rho .* got \\[\\]"),
        ({"rho": 0.1}, "rho .* got 0.1"),
        ({"other": {"sam": "asam"}}, "sam .* got 'asam'"),
        ({"X_test": np.ones((3, 5))}, "y_test"),
        ({"y_test": [0, 1]}, "X_test"),
        ({"X_test": np.ones((3, 5)), "y_test": [0]}, "3 samples, y_test has 1"),
        ({"other": {"rho": [0.2]}}, "other varies 'rho'"),
        ({"other": {"random_state": [1, 2]}}, "'random_state'.* seeds="),
        ({"sharpness": True}, "sharpness .* got True"),
        ({"y": np.arange(9)}, "y has 9"),
        ({"estimator": DeepEnsembleClassifier()}, "DeepEnsembleClassifier .* rho"),
    ],
)
def test_invalid_tradeoff_curves_raise(data, options, message):
    X, y = data
    call = {"estimator": sharpbalance(), "X": X, "y": y, "rho": [0.1], **options}
    with pytest.raises(InvalidInputError, match=message):
        tradeoff_curve(**call)


def test_varying_rho_twice_in_a_pipeline_raises(data):
    pipeline = make_pipeline(StandardScaler(), sharpbalance())
    name = f"{pipeline.steps[-1][0]}__rho"
    with pytest.raises(InvalidInputError, match=name):
        tradeoff_curve(pipeline, *data, rho=[0.1, 0.2], other={name: [0.3]})
