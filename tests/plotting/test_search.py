"""The heat map of a search."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import SearchDisplay

GRID = {"C": [10.0, 0.001, 1.0], "gamma": [0.01, 1.0]}
X, y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def search():
    return GridSearchCV(SVC(), GRID, cv=4).fit(X, y)


def test_each_cell_is_one_candidate(search):
    display = SearchDisplay.from_estimator(search, x="gamma", y="C")
    assert display.x_values == [0.01, 1.0]
    assert display.y_values == [0.001, 1.0, 10.0]
    results = search.cv_results_
    for i, params in enumerate(results["params"]):
        row = display.y_values.index(params["C"])
        column = display.x_values.index(params["gamma"])
        assert display.scores[row, column] == results["mean_test_score"][i]
        folds = [results[f"split{k}_test_score"][i] for k in range(4)]
        error = np.std(folds, ddof=1) / 2
        assert display.standard_errors[row, column] == pytest.approx(error)
        text = display.text_[row, column].get_text()
        assert text == f"{np.mean(folds):.3f}\n± {error:.3f}"


def test_the_frame_is_around_the_chosen_point(search):
    display = SearchDisplay.from_estimator(search, x="gamma", y="C")
    row, column = display.best
    assert display.y_values[row] == search.best_params_["C"]
    assert display.x_values[column] == search.best_params_["gamma"]
    x, y_low = display.best_.get_xy()
    assert (round(x + 0.47), round(y_low + 0.47)) == (column, row)


def test_further_parameters_and_pipelines():
    pipeline = make_pipeline(StandardScaler(), SVC())
    grid = {f"svc__{name}": values for name, values in GRID.items()}
    grid["svc__class_weight"] = [None, "balanced"]
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    display = SearchDisplay.from_estimator(search, x="gamma", y="C")
    results = search.cv_results_
    own = [
        score
        for params, score in zip(results["params"], results["mean_test_score"])
        if params["svc__C"] == 1.0 and params["svc__gamma"] == 0.01
    ]
    assert display.scores[1, 0] == max(own)


def test_a_score_that_failed_is_left_out():
    display = SearchDisplay([[np.nan, 0.5]], [1, 2], [3]).plot()
    assert display.text_[0, 0].get_text() == "no score"
    assert display.text_[0, 1].get_text() == "0.500"
    assert display.best_ is None


def test_errors_say_what_to_pass(search):
    with pytest.raises(InvalidInputError, match=r"'rho' is not .* \['C', 'gamma'\]"):
        SearchDisplay.from_estimator(search, x="gamma")
    with pytest.raises(InvalidInputError, match=r"no score 'f1'.*\['score'\]"):
        SearchDisplay.from_estimator(search, x="gamma", y="C", metric="f1")
    with pytest.raises(InvalidInputError, match="scores must have one row"):
        SearchDisplay([[0.5]], [1, 2], [3]).plot()
    with pytest.raises(NotFittedError):
        SearchDisplay.from_estimator(GridSearchCV(SVC(), GRID))
