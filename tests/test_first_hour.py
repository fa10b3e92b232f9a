"""The first hour of a user: from the import to a saved model, by public names only."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

import sklearn_sharpbalance as sb
from sklearn_sharpbalance import evaluation, metrics, plotting

SMALL = {
    "n_estimators": 2,
    "max_epochs": 6,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (16,),
}


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    return train_test_split(X, names, test_size=0.3, random_state=0, stratify=y)


@pytest.fixture(scope="module")
def clf(iris):
    X_train, _, y_train, _ = iris
    return sb.SharpBalanceEnsembleClassifier(**SMALL).fit(X_train, y_train)


def test_a_table_is_fitted_and_predicted(clf, iris, capsys):
    _, X_test, _, y_test = iris
    assert clf.score(X_test, y_test) > 0.6
    assert set(clf.predict(X_test)) <= {"setosa", "versicolor", "virginica"}
    proba = clf.predict_proba(X_test)
    assert proba.shape == (len(X_test), 3)
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-6)
    assert clf.member_predict_proba(X_test).shape == (2, len(X_test), 3)
    assert capsys.readouterr() == ("", "")  # nothing is printed by default


def test_a_table_of_numbers_categories_and_gaps_is_fitted():
    rng = np.random.default_rng(0)
    kind = rng.choice(["red", "green", "blue"], size=60)
    size = rng.normal(size=60)
    size[::10] = np.nan
    X = pd.DataFrame({"kind": pd.Categorical(kind), "size": size})
    clf = sb.DeepEnsembleClassifier(lr=0.1, **SMALL).fit(X, kind == "red")
    assert clf.score(X, kind == "red") > 0.6
    assert list(clf.feature_names_in_) == ["kind", "size"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rho": -1}, "rho must be finite and >= 0, got -1"),
        ({"selection": "sharp"}, "Unknown selection 'sharp'.*flattest"),
        ({"max_epochs": 0}, "max_epochs.*0"),
    ],
)
def test_wrong_settings_are_named_before_training(iris, params, message):
    X_train, _, y_train, _ = iris
    clf = sb.SharpBalanceEnsembleClassifier(**{**SMALL, **params})
    with pytest.raises(ValueError, match=message):
        clf.fit(X_train, y_train)


def test_missing_labels_and_other_columns_are_named(clf, iris):
    X_train, X_test, y_train, _ = iris
    labels = y_train.astype(object).copy()
    labels[3] = None
    with pytest.raises(ValueError, match="missing"):
        sb.DeepEnsembleClassifier(**SMALL).fit(X_train, labels)
    with pytest.raises(ValueError, match="petal"):
        clf.predict(X_test.drop(columns=X_test.columns[-1]))


def test_measures_and_pictures(clf, iris, capsys):
    X_train, X_test, y_train, y_test = iris
    deep = sb.DeepEnsembleClassifier(**SMALL).fit(X_train, y_train)
    ensembles = {"deep": deep, "SharpBalance": clf}
    sharpness = metrics.adaptive_sharpness(clf, X_test, y_test, random_state=0)
    assert sharpness > 0
    display = plotting.TradeoffDisplay.from_estimator(
        ensembles, X_test, y_test, random_state=0
    )
    assert display.sharpness[1] == pytest.approx(sharpness)
    plotting.ReliabilityDisplay.from_estimator(clf, X_test, y_test)
    plt.close("all")
    report = evaluation.evaluate(ensembles, X_test, y_test, n_bootstrap=20, verbose=1)
    assert capsys.readouterr().out.splitlines() == [
        "deep: measured",
        "SharpBalance: measured",
    ]
    row = report.row("SharpBalance", "accuracy")
    assert row["mean"] == pytest.approx(clf.score(X_test, y_test))
