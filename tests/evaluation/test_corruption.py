"""Numbers on corrupted samples, compared with naive loops."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from sklearn_sharpbalance.corruption import CorruptionFiles, corrupt, corrupt_table
from sklearn_sharpbalance.corruption.sets import corrupted_sets
from sklearn_sharpbalance.evaluation import corruption_accuracy, evaluate
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    expected_calibration_error,
    negative_log_likelihood,
)
from tests.evaluation.fake import Fake, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Bright:
    """Two members that call an image bright above a mean of 120 or of 140."""

    classes_ = np.array(["bright", "dark"])
    thresholds = (120, 140)

    def member_predict_proba(self, X):
        level = np.asarray(X).reshape(len(X), -1).mean(1)
        bright = np.stack([level > t for t in self.thresholds]) * 0.8 + 0.1
        return np.stack([bright, 1 - bright], axis=-1)

    def predict_proba(self, X):
        return self.member_predict_proba(X).mean(0) + np.array([0.01, -0.01])


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    level = rng.integers(60, 200, size=(40, 1, 1, 1))
    X = np.clip(level + rng.normal(scale=20, size=(40, 3, 12, 12)), 0, 255)
    y = np.where(level.ravel() > 128, "bright", "dark")
    return X.astype(np.uint8), y


def test_accuracy_on_images_equals_a_loop(images):
    X, y = images
    result = corruption_accuracy(
        Bright(), X, y, corruptions=["brightness", "noise"], severities=(1, 4)
    )
    kinds = ("brightness", "gaussian_noise", "shot_noise", "impulse_noise")
    assert result.index.names == ["kind", "severity"]
    assert result.index.tolist() == [(k, s) for k in kinds for s in (1, 4)]
    for (kind, severity), row in result.iterrows():
        last = corrupt(X.transpose(0, 2, 3, 1), kind, severity, random_state=0)
        bright = last.mean((1, 2, 3)) > np.array([[120], [140]])  # (2, N)
        right = (bright == (y == "bright")).mean(1)
        np.testing.assert_allclose(row[["member_0", "member_1"]], right)
        assert row["members"] == pytest.approx(right.mean())
        # If the members differ, the ensemble predicts bright.
        assert row["ensemble"] == (bright[0] == (y == "bright")).mean()


def test_accuracy_on_tables_equals_a_loop():
    X, y = load_iris(return_X_y=True, as_frame=True)
    clf = LogisticRegression(max_iter=1000).fit(X, y)
    with np.errstate(all="raise"):
        result = corruption_accuracy(clf, X, y, severities=[2, 5])
    kinds = ["feature_noise", "missing_values", "feature_shift", "label_shift"]
    assert result.index.unique("kind").tolist() == kinds
    for (kind, severity), found in result["ensemble"].items():
        table, labels = corrupt_table(X, y, kind, severity, random_state=0)
        assert found == clf.score(pd.DataFrame(table, columns=X.columns), labels)


def test_corruption_files_are_read(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=6)
    np.save(tmp_path / "labels.npy", np.tile(labels, 5))
    np.save(
        tmp_path / "fog.npy", rng.integers(256, size=(30, 32, 32, 3), dtype=np.uint8)
    )
    files = CorruptionFiles(tmp_path)
    clf = Bright()
    clf.classes_ = np.array([0, 1])
    result = corruption_accuracy(clf, None, None, corruptions=files, severities=[2, 3])
    for severity in (2, 3):
        predicted = clf.predict_proba(files["fog", severity][0]).argmax(1)
        assert result.loc[("fog", severity), "ensemble"] == (predicted == labels).mean()
    with pytest.raises(InvalidInputError, match=r"has no set \('fog', 6\)"):
        corruption_accuracy(clf, None, None, corruptions=files, severities=[6])


METRICS = {
    "corrupted_accuracy": lambda y, p: (p.argmax(-1) == y).mean(),
    "corrupted_nll": negative_log_likelihood,
    "corrupted_ece": partial(expected_calibration_error, n_bins=15),
}


@pytest.mark.parametrize("name", METRICS)
def test_numbers_and_intervals_of_a_report_equal_a_loop(name):
    probas, y, X = made_up(0, n_samples=50)
    rng = np.random.default_rng(1)
    sets = {(kind, s): (rng.permutation(X), y) for kind in "ab" for s in (1, 2)}
    fake = Fake(probas)
    options = {"corruptions": sets, "severities": (1, 2), "random_state": 4}
    report = evaluate(fake, X, y, n_bootstrap=150, **options)
    result = corruption_accuracy(fake, X, y, **options)
    pd.testing.assert_frame_equal(report.corruption["Fake"][0], result)
    draws = np.random.default_rng([4, 50, 0])
    drawn = [draws.integers(50, size=50) for _ in range(150)]

    def mean_of(at, severities, part):
        found = []
        for (_, severity), (samples, labels) in sets.items():
            members = fake.member_predict_proba(samples)
            predictors = members if part == "members" else members.mean(0)[None]
            if severity in severities:
                found += [METRICS[name](labels[at], p[at]) for p in predictors]
        return np.mean(found)

    for part in ("members", "ensemble"):
        for detail, severities in (("", (1, 2)), ("severity 2", (2,))):
            row = report.row("Fake", name, part, detail)
            assert row["mean"] == pytest.approx(mean_of(slice(None), severities, part))
            values = np.sort([mean_of(at, severities, part) for at in drawn])
            if name == "corrupted_ece":  # resampling increases it
                assert values.mean() > row["mean"]
                values -= values.mean() - row["mean"]
            assert row["low"] == pytest.approx(values[3])  # 2.5 % of 150: the 4th
            assert row["high"] == pytest.approx(values[146])


def test_sets_of_another_size_have_their_own_draws():
    probas, y, X = made_up(0, n_samples=50)
    sets = {("half", 1): (X[:25], y[:25])}
    report = evaluate(
        Fake(probas), X, y, corruptions=sets, severities=[1], n_bootstrap=40
    )
    row = report.row("Fake", "corrupted_accuracy")
    assert row["mean"] == (probas.mean(0)[:25].argmax(1) == y[:25]).mean()
    assert row["low"] < row["mean"] < row["high"]


def test_copies_of_a_row_are_drawn_together():
    """A label shift draws rows again, so that its samples are not independent."""
    X, y = load_iris(return_X_y=True)
    clf = LogisticRegression(max_iter=500).fit(X[::3], y[::3])
    X, y = X[1::3], y[1::3]
    report = evaluate(
        clf, X, y, corruptions="label_shift", severities=[5], n_bootstrap=200
    )
    place = np.arange(len(y), dtype=float)[:, None]
    rows = corrupt_table(place, y, "label_shift", 5, random_state=0)[0].ravel()
    assert len(set(rows)) < 0.6 * len(rows)
    right = clf.predict(X) == y
    rng = np.random.default_rng([0, len(y), 0])
    values = []
    for _ in range(200):
        drawn = rng.integers(len(y), size=len(y))
        again = [row for row in drawn for _ in range((rows == row).sum())]
        values.append(right[again].mean())
    row = report.row("LogisticRegression", "corrupted_accuracy")
    assert row["mean"] == pytest.approx(right[rows.astype(int)].mean())
    assert row["low"] == pytest.approx(np.sort(values)[4])
    assert row["high"] == pytest.approx(np.sort(values)[194])


def test_every_kind_and_severity_counts_once(images):
    X, y = images
    twice = corruption_accuracy(
        Bright(), X, y, corruptions=["noise", "shot_noise", "noise"], severities=[1, 1]
    )
    once = corruption_accuracy(Bright(), X, y, corruptions="noise", severities=1)
    pd.testing.assert_frame_equal(twice, once)
    with pytest.raises(InvalidInputError, match="called '<lambda>'"):
        corruption_accuracy(
            Bright(), X, y, corruptions=[lambda *a: a[0], lambda *a: a[0]]
        )


def test_frames_may_have_boolean_columns():
    X, y = load_iris(return_X_y=True)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(wide=X[:, 1] > 3)
    clf = LogisticRegression(max_iter=500).fit(frame, y)
    numbers = frame.astype(float)
    options = {"corruptions": ["feature_noise"], "severities": [3]}
    found = [corruption_accuracy(clf, X, y, **options) for X in (frame, numbers)]
    pd.testing.assert_frame_equal(*found)
    with pytest.raises(InvalidInputError, match="numeric table"):
        corruption_accuracy(clf, frame.assign(wide="no"), y, **options)


def test_frames_keep_their_index():
    X, y = load_iris(return_X_y=True)
    names = [f"row {i}" for i in range(len(y))]
    frame = pd.DataFrame(X, columns=list("abcd"), index=names)
    kinds = ["feature_noise", "label_shift", lambda X, y, *rest: (X[:9], y[:9])]
    noisy, shifted, cut = corrupted_sets(
        frame, y, corruptions=kinds, severities=3, random_state=0
    )
    assert noisy.X.index.equals(frame.index)
    pd.testing.assert_frame_equal(shifted.X, frame.iloc[shifted.rows])
    assert cut.X.index.equals(pd.RangeIndex(9))


@pytest.mark.parametrize(("kinds", "n_kinds"), [("fog", 1), (True, 15)])
def test_corruptions_may_be_one_name_or_true(images, kinds, n_kinds):
    X, y = images
    options = {"corruptions": kinds, "severities": [1]}
    report = evaluate(Bright(), X, y, n_bootstrap=0, **options)
    (found,) = report.corruption["Bright"]
    assert len(found) == n_kinds
    alone = corruption_accuracy(Bright(), X, y, **options)
    pd.testing.assert_frame_equal(found, alone)


def test_samples_that_cannot_be_corrupted_raise(images):
    X, y = images
    with pytest.raises(InvalidInputError, match="arrays and DataFrames, got dict"):
        corruption_accuracy(Bright(), {"x": X}, y)
    with pytest.raises(InvalidInputError, match="There is nothing to measure"):
        corruption_accuracy(Bright(), X, y, severities=[])
