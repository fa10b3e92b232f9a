"""The numbers of a report, compared with values by hand and by naive loops."""

from itertools import permutations
from math import log

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.evaluation import evaluate
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.evaluation.fake import Fake, Single, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

A = [[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.3, 0.7]]  # wrong about the third
B = [[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.1, 0.9]]  # wrong about the second
Y = np.array([0, 1, 0, 1])
X = np.arange(4.0)[:, None]


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    clf = DeepEnsembleClassifier(n_estimators=2, max_epochs=3, random_state=0)
    return clf.fit(X[::2], names[y[::2]]), X[1::2], names[y[1::2]]


def test_small_report_equals_values_by_hand():
    report = evaluate({"tiny": Fake([A, B])}, X, Y, n_bootstrap=0)
    mean = [0.75, 0.55, 0.6, 0.8]  # of the true classes
    true = [[0.9, 0.8, 0.4, 0.7], [0.6, 0.3, 0.8, 0.9]]
    kl = [
        sum(p * log(p / q) for p, q in zip(one, other))
        for first, second in permutations([A, B], 2)
        for one, other in zip(first, second)
    ]
    expected = {
        ("accuracy", "members"): 0.75,
        ("accuracy", "ensemble"): 1.0,
        ("nll", "members"): -sum(log(p) for row in true for p in row) / 8,
        ("nll", "ensemble"): -sum(map(log, mean)) / 4,
        ("brier", "members"): sum((1 - p) ** 2 for row in true for p in row) / 8,
        ("brier", "ensemble"): (0.0625 + 0.2025 + 0.16 + 0.04) / 4,
        ("ece", "members"): (0.1 + 0.2 + 0.6 + 0.3 + 0.4 + 0.7 + 0.2 + 0.1) / 8,
        ("ece", "ensemble"): (0.25 + 0.45 + 0.4 + 0.2) / 4,
        ("eir", "ensemble"): 1.0,
        ("der", "ensemble"): 2.0,
        ("disagreement", "ensemble"): 0.5,
        ("variance", "ensemble"): (0.09 + 0.25 + 0.16 + 0.04) / 4,
        ("kl", "ensemble"): sum(kl) / 8,
    }
    frame = report.to_frame()
    found = frame.set_index(["metric", "part"])["mean"].to_dict()
    assert found == pytest.approx(expected)
    assert frame[["std", "low"]].isna().all(axis=None)
    assert set(frame["method"]) == {"tiny"}


def test_mean_and_standard_deviation_over_seeds():
    runs = [Fake([A, B]), Fake([A, A])]  # accuracies 1 and 0.75
    report = evaluate({"two": runs, "one": Fake([B, B])}, X, Y, n_bootstrap=50)
    row = report.row("two", "accuracy")
    assert row["mean"] == 0.875
    assert row["std"] == pytest.approx(0.125 * 2**0.5)
    assert row["n_runs"] == 2
    assert report.row("one", "accuracy")["n_runs"] == 1
    np.testing.assert_array_equal(report.run_values("two", "accuracy"), [1.0, 0.75])
    with pytest.raises(InvalidInputError, match=r"have \[2, 1\] runs"):
        report.rank()


def test_interval_of_several_seeds_is_that_of_their_mean():
    p, y, X = made_up(0)
    q = made_up(1)[0]
    report = evaluate({"m": [Fake(p), Fake(q)]}, X, y, n_bootstrap=200, random_state=7)
    rng = np.random.default_rng([7, 60, 0])
    right = [(proba.mean(0).argmax(1) == y) for proba in (p, q)]
    drawn = [rng.integers(60, size=60) for _ in range(200)]
    values = sorted(np.mean([r[at].mean() for r in right]) for at in drawn)
    row = report.row("m", "accuracy")
    assert row["low"] == pytest.approx(values[4])  # 2.5 % of 200
    assert row["high"] == pytest.approx(values[194])


def test_report_depends_on_random_state_only(iris):
    clf, X, y = iris
    options = {
        "corruptions": ["feature_noise"],
        "ood": -X,
        "sharpness": {"n_batches": 2},
    }
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = (evaluate(clf, X, y, n_bootstrap=50, **options) for _ in range(2))
    other = evaluate(clf, X, y, n_bootstrap=50, random_state=1, **options)
    after = np.random.get_state()[1]  # noqa: NPY002
    np.testing.assert_array_equal(after, before)
    one, two, other = (report.to_frame() for report in (one, two, other))
    pd.testing.assert_frame_equal(one, two)
    for name in ("mean", "low", "high"):
        assert not np.array_equal(one[name], other[name], equal_nan=True)


def test_report_equals_public_metrics(iris):
    clf, X, y = iris
    report = evaluate(clf, X, y, n_bootstrap=0, sharpness={"n_batches": 3})
    name = "DeepEnsembleClassifier"
    probas, proba = clf.member_predict_proba(X), clf.predict_proba(X)
    codes = np.searchsorted(clf.classes_, y)
    assert report.row(name, "accuracy")["mean"] == clf.score(X, y)
    expected = metrics.ensemble_improvement_rate(codes, probas, ensemble_proba=proba)
    assert report.row(name, "eir")["mean"] == pytest.approx(expected)
    nll = np.mean([metrics.negative_log_likelihood(codes, p) for p in probas])
    assert report.row(name, "nll", "members")["mean"] == pytest.approx(nll)
    flat = metrics.adaptive_sharpness(clf, X, y, n_batches=3, random_state=0)
    found = report.row(name, "sharpness", "members")["mean"]
    assert found == pytest.approx(flat)


def test_sharpness_is_measured_on_given_training_samples(iris):
    clf, X, y = iris
    options = {"sharpness": {"n_batches": 3}, "n_bootstrap": 40}
    report = evaluate(clf, X, y, X_train=X[:30], y_train=y[:30], **options)
    expected = metrics.adaptive_sharpness(
        clf, X[:30], y[:30], n_batches=3, random_state=0, return_batches=True
    )
    row = report.row("DeepEnsembleClassifier", "sharpness", "members")
    assert row["mean"] == pytest.approx(expected.mean())
    assert expected.min() <= row["low"] < row["mean"] < row["high"] <= expected.max()
    by_function = evaluate(
        Fake([A, B]),
        np.arange(4.0)[:, None],
        Y,
        sharpness=lambda estimator, X, y: [1.0, 2.0],
        n_bootstrap=0,
    )
    assert by_function.row("Fake", "sharpness", "members")["mean"] == 1.5


def test_sharpness_function_receives_the_ensemble_of_a_pipeline(iris):
    _, X, y = iris
    alone = DeepEnsembleClassifier(max_epochs=2, random_state=0)
    piped = make_pipeline(StandardScaler(), alone).fit(X, y)
    report = evaluate(piped, X, y, sharpness=metrics.mean_fisher_trace, n_bootstrap=0)
    expected = metrics.mean_fisher_trace(piped[-1], piped[:-1].transform(X), y)
    row = report.row("DeepEnsembleClassifier", "sharpness", "members")
    assert row["mean"] == pytest.approx(expected)


def test_single_classifier_has_no_rows_about_members(iris):
    clf, X, y = iris
    single = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    report = evaluate(
        {"ours": clf, "theirs": single},
        X,
        y,
        n_bootstrap=20,
        ood=-X,
        sharpness={"n_batches": 1, "n_iter": 2},
    )
    assert report.row("theirs", "accuracy")["mean"] == single.score(X, y)
    parts = {*zip(report.to_frame()["method"], report.to_frame()["part"])}
    assert parts == {("ours", "ensemble"), ("ours", "members"), ("theirs", "ensemble")}
    for metric in ("der", "sharpness"):
        with pytest.raises(InvalidInputError, match=f"has no '{metric}' of the"):
            report.row("theirs", metric)
    score = report.to_frame(wide=True).loc["ood_auroc", "ensemble", "PDS"]
    assert score.notna().to_dict() == {"ours": True, "theirs": False}


@pytest.mark.parametrize(
    ("estimators", "options", "message"),
    [
        (LogisticRegression(), {}, "LogisticRegression"),
        (Fake([A, B]), {"n_bootstrap": -5}, "n_bootstrap"),
        (Fake([A, B]), {"n_bootstrap": 0.5}, "n_bootstrap"),
        (Fake([A, B]), {"sharpness": True, "X_train": X}, "y_train"),
        ({1: Fake([A, B]), "1": Single(A)}, {}, "1, '1'"),
        ({"a": []}, {}, "'a'"),
    ],
)
def test_invalid_evaluations_raise(estimators, options, message):
    with pytest.raises(InvalidInputError, match=message):
        evaluate(estimators, X, Y, **options)
