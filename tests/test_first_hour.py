"""The first hour of a user: from the import to a saved model, by public names only."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, train_test_split

import sklearn_sharpbalance as sb
from sklearn_sharpbalance import evaluation, metrics, plotting
from sklearn_sharpbalance.selection import SUBSET_SELECTORS
from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS

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


def test_a_search_prints_one_line_for_each_fit(iris, capsys):
    X_train, _, y_train, _ = iris
    clf = sb.SharpBalanceEnsembleClassifier(**{**SMALL, "max_epochs": 2}, verbose=1)
    grid = {"rho": [0.02, 0.1], "flat_ratio": [0.2, 0.6]}
    search = GridSearchCV(clf, grid, cv=2).fit(X_train, y_train)
    assert set(search.best_params_) == {"rho", "flat_ratio"}
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 * 2 + 1
    assert all(line.startswith("SharpBalance(n_estimators=2") for line in lines)
    assert sum("rho=0.02, flat_ratio=0.2" in line for line in lines[:-1]) == 2


def test_names_and_settings_can_be_found(clf):
    for registry, part in ((SUBSET_SELECTORS, "selection"), (SHARPNESS_SCORERS, None)):
        for name in registry:
            assert name in repr(registry)
            if part:
                assert f'"{name}"' in type(clf).__doc__
    settings = clf.settings_
    assert settings["max_epochs"] == 6
    assert {"lr", "batch_size", "device", "precision"} <= set(settings)
    assert "settings" in clf._repr_html_().lower() or "lr" in clf._repr_html_()


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


def test_a_saved_model_predicts_the_same(clf, iris, tmp_path):
    _, X_test, _, _ = iris
    path = tmp_path / "model.sharpbalance"
    clf.save(path)
    loaded = sb.load(path)
    np.testing.assert_array_equal(
        loaded.predict_proba(X_test), clf.predict_proba(X_test)
    )
    assert loaded.get_params() == clf.get_params()
