"""Comparisons of methods at matched compute."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.evaluation import compare
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import TwoInputs
from tests.evaluation.cases import SMALL, sharpbalance

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def methods():
    return {
        "deep": DeepEnsembleClassifier(**SMALL, max_epochs=8),
        "SAM": sharpbalance(selection="all", max_epochs=50),
        "linear": LogisticRegression(),
    }


@pytest.fixture(scope="module")
def comparison(data, methods):
    return compare(methods, *data, cv=2, seeds=[3, 4], n_bootstrap=50)


def test_matched_methods_take_the_same_passes(comparison):
    for name, epochs in {"deep": 8, "SAM": 4}.items():
        assert comparison.run_values(name, "epochs").tolist() == [epochs] * 4
        assert comparison.run_values(name, "gradient_passes").tolist() == [24.0] * 4
    wide = comparison.to_frame(wide=True)
    assert np.isnan(wide.loc[("gradient_passes", "ensemble", ""), "linear"])


def test_runs_equal_a_loop_over_folds_and_seeds(data, comparison, methods):
    X, y = data
    folds = StratifiedKFold(2, shuffle=True, random_state=0).split(X, y)
    expected = []
    for train, test in folds:
        for seed in (3, 4):
            clf = DeepEnsembleClassifier(**SMALL, max_epochs=8, random_state=seed)
            expected.append(clf.fit(X[train], y[train]).score(X[test], y[test]))
    assert comparison.run_values("deep", "accuracy").tolist() == expected
    assert methods["SAM"].max_epochs == 50  # the caller's estimator is not changed
    assert not hasattr(methods["deep"], "estimators_")


def test_methods_are_ranked_by_accuracy(comparison):
    ranking = comparison.rank()
    means = {m: comparison.row(m, "accuracy")["mean"] for m in comparison.methods}
    assert ranking.index[0] == max(means, key=means.get)
    assert (ranking["rank_low"] <= ranking["rank"]).all()
    assert (ranking["rank"] <= ranking["rank_high"]).all()
    assert ranking["best_fraction"].sum() == pytest.approx(1)
    assert set(comparison.rank("nll").index) == set(means)


def test_comparison_depends_on_random_state_only(data):
    X, y = data
    only = {"deep": DeepEnsembleClassifier(**SMALL, max_epochs=2)}
    options = {"cv": 0.3, "seeds": 2, "n_bootstrap": 20}
    one, two = (compare(only, X, y, random_state=1, **options) for _ in range(2))
    other = compare(only, X, y, random_state=2, **options)
    pd.testing.assert_frame_equal(one.to_frame(), two.to_frame())
    assert not one.to_frame().equals(other.to_frame())
    assert one.row("deep", "accuracy")["n_runs"] == 2


def test_other_reference_or_no_matching(data, methods):
    X, y = data
    only = {name: methods[name] for name in ("deep", "SAM")}
    only["SAM"] = sharpbalance(selection="all", max_epochs=2)
    splits = [(np.arange(100), np.arange(100, 160))]
    options = {"cv": splits, "n_bootstrap": 0}
    report = compare(only, X, y, reference="SAM", **options)
    assert report.row("deep", "epochs")["mean"] == 4
    report = compare(only, X, y, matched_compute=False, **options)
    assert report.row("deep", "epochs")["mean"] == 8


def test_frames_pipelines_and_fit_params(data, capsys):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcde"))
    methods = {
        "deep": make_pipeline(
            StandardScaler(), DeepEnsembleClassifier(**SMALL, max_epochs=4)
        ),
        "A2D": DiversifiedEnsembleClassifier(**SMALL, loss="a2d"),
    }
    report = compare(
        methods,
        frame,
        y,
        cv=0.5,
        fit_params={"A2D": {"X_unlabeled": frame}},
        corruptions=["feature_noise"],
        severities=[5],
        n_bootstrap=0,
        verbose=1,
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1 of 2: fold 1: deep, random_state=")
    assert second.startswith("2 of 2: fold 1: A2D, random_state=")
    assert second.endswith(" left")
    # 12 passes: three members at 1 + 2/3 an epoch take 5 with two epochs, 10 or 15.
    assert report.row("A2D", "epochs")["mean"] == 2
    assert report.row("deep", "corrupted_accuracy", "members", "severity 5")


class Recording(DeepEnsembleClassifier):
    """An ensemble that records the weights of each fit."""

    weights: list = []

    def fit(self, X, y=None, sample_weight=None):
        self.weights.append(sample_weight)
        return super().fit(X, y, sample_weight=sample_weight)


IMAGES = np.zeros((160, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"corruptions": ["foggy"]}, "'foggy'"),
        ({"X": IMAGES, "corruptions": ["noise", "foggy"]}, "'foggy'"),
        ({"corruptions": "label_shift", "severities": [6]}, "severity .* 6"),
        ({"corruptions": {"fog": 1}}, r"\(kind, severity\).*'fog'"),
        ({"corruptions": {("mine", 1): 1}}, r"\('mine', 2\)"),
        ({"sharpness": {"radius": 1}}, "'radius'"),
        ({"sharpness": None}, "sharpness .* None"),
        ({"n_bootstrap": None}, "n_bootstrap .* None"),
        ({"ood": {1: 0, "1": 0}}, r"\[1, '1'\]"),
        ({"reference": "best"}, "reference 'best'"),
        ({"fit_params": {"x": {}}}, "name in fit_params 'x'"),
        ({"seeds": 0}, "seeds .* 0"),
        ({"X": IMAGES[:10]}, "X has 10 samples, y has 160"),
    ],
)
def test_invalid_parameters_raise_before_any_training(data, what, message):
    Recording.weights.clear()
    call = {"X": data[0], "y": data[1], "cv": 2, **what}
    with pytest.raises(InvalidInputError, match=message):
        compare({"deep": Recording(max_epochs=1)}, **call)
    assert not Recording.weights


def test_methods_that_cannot_be_compared_raise(data, methods):
    with pytest.raises(InvalidInputError, match="'linear'"):
        compare(methods, *data, reference="linear")
    with pytest.raises(InvalidInputError, match="seeds="):
        compare({"a": [LogisticRegression()] * 2}, *data)


def test_polars_frames_equal_pandas_frames(data):
    polars = pytest.importorskip("polars")
    X, y = data
    names = list("abcde")
    method = {"p": make_pipeline(StandardScaler(), LogisticRegression())}
    options = {"cv": 2, "matched_compute": False, "n_bootstrap": 0, "severities": [2]}
    options["corruptions"] = ["feature_noise", "label_shift"]
    reports = [
        compare(method, frame, y, **options)
        for frame in (pd.DataFrame(X, columns=names), polars.DataFrame(X, names))
    ]
    pd.testing.assert_frame_equal(*(report.to_frame() for report in reports))


def test_sample_weights_are_split_into_folds(data):
    X, y = data
    Recording.weights.clear()
    weight = np.arange(1.0, len(y) + 1)
    compare(
        {"deep": Recording(max_epochs=1)},
        X,
        y,
        cv=2,
        fit_params={"deep": {"sample_weight": weight}},
        n_bootstrap=0,
    )
    np.testing.assert_array_equal(np.sort(np.concatenate(Recording.weights)), weight)


def test_dictionaries_of_arrays_are_split_into_folds(data):
    X, y = data
    inputs = {"a": X[:, :2].astype("float32"), "b": X[:, 2:].astype("float32")}
    deep = DeepEnsembleClassifier(TwoInputs, max_epochs=2, n_estimators=2)
    report = compare([deep], inputs, y, cv=2, n_bootstrap=0)
    assert report.row("DeepEnsembleClassifier", "accuracy")["n_runs"] == 2
