import numpy as np
import pytest

from sklearn_sharpbalance.corruption import (
    SEVERITIES,
    TABULAR_CORRUPTIONS,
    corrupt_table,
)
from sklearn_sharpbalance.exceptions import InvalidInputError


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 20)) * np.arange(1, 21) + np.arange(-5, 15)
    return X, rng.choice(["a", "b", "c"], p=[0.5, 0.3, 0.2], size=4000)


@pytest.mark.parametrize("name", TABULAR_CORRUPTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shape_dtype_and_determinism(name, dtype, table):
    X, y = table[0].astype(dtype), table[1]
    before = X.copy()
    first = corrupt_table(X, y, name, 3, random_state=1)
    second = corrupt_table(X, y, name, 3, random_state=1)
    other = corrupt_table(X, y, name, 3, random_state=2)
    assert first[0].shape == X.shape
    assert first[0].dtype == dtype
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.array_equal(first[0], other[0])
    np.testing.assert_array_equal(X, before)


def test_severities_of_noise_and_shift_are_fractions_of_the_deviation(table):
    X, y = table
    for severity, share in zip(SEVERITIES, (0.1, 0.2, 0.4, 0.6, 1.0)):
        noise = corrupt_table(X, y, "feature_noise", severity, random_state=0)[0] - X
        np.testing.assert_allclose(noise.std(axis=0), share * X.std(axis=0), rtol=0.05)
    for severity, share in zip(SEVERITIES, (0.1, 0.25, 0.5, 0.75, 1.0)):
        moved = corrupt_table(X, y, "feature_shift", severity, random_state=0)[0] - X
        np.testing.assert_allclose(moved, np.broadcast_to(moved[0], X.shape), atol=1e-9)
        np.testing.assert_allclose(np.abs(moved[0]), share * X.std(axis=0))


def test_missing_values_are_the_column_mean_or_nan(table):
    X, y = table
    for severity, share in zip(SEVERITIES, (0.05, 0.1, 0.2, 0.3, 0.5)):
        mean, _ = corrupt_table(X, y, "missing_values", severity, random_state=0)
        nan, _ = corrupt_table(X, y, "missing_nan", severity, random_state=0)
        gone = np.isnan(nan)
        assert gone.mean() == pytest.approx(share, abs=0.01)
        np.testing.assert_array_equal(nan[~gone], X[~gone])
        hit = mean != X
        assert hit.mean() == pytest.approx(share, abs=0.01)
        np.testing.assert_array_equal(mean, np.where(hit, X.mean(axis=0), X))


def test_label_shift_gives_one_class_the_stated_share(table):
    X, y = table
    for severity, share in zip(SEVERITIES, (0.1, 0.2, 0.35, 0.5, 0.7)):
        new_X, new_y = corrupt_table(X, y, "label_shift", severity, random_state=0)
        old = np.array([(y == c).mean() for c in "abc"])
        new = np.array([(new_y == c).mean() for c in "abc"])
        favoured = int(np.argmax(new / old))
        expected = (1 - share) * old + share * (np.arange(3) == favoured)
        np.testing.assert_allclose(new, expected, atol=0.03)
        label_of = {row.tobytes(): label for row, label in zip(X, y)}
        assert all(label_of[row.tobytes()] == c for row, c in zip(new_X, new_y))


@pytest.mark.parametrize("has_reference", [False, True])
def test_a_kind_may_be_a_function_that_changes_its_arguments(has_reference):
    def negate(X, y, severity, rng, reference):
        reference -= reference.mean(axis=0)
        X *= -1
        y[:] = 7
        return X, y

    X, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    reference = X if has_reference else None
    negated, labels = corrupt_table(X, y, negate, 1, reference=reference)
    np.testing.assert_array_equal(negated, -X)
    assert labels.tolist() == [7, 7, 7]
    np.testing.assert_array_equal(X, np.arange(6.0).reshape(3, 2))
    assert y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "fog"}, r"'fog'.*'feature_noise'"),
        ({"severity": 0}, r"severity must be an integer from 1 to 5, got 0"),
        ({"X": [["a"]]}, r"X must be a numeric table"),
        ({"X": [1.0, 2.0]}, r"X must be a numeric table .* shape \(2,\)"),
        ({"y": [0]}, r"y must have shape \(2,\), got \(1,\)"),
        ({"reference": [[1.0]]}, r"reference has 1 columns, X has 2"),
        ({"name": "label_shift", "y": None}, r"label_shift needs .* Pass y"),
    ],
)
def test_bad_input_raises(change, message):
    call = {"X": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1], "name": "feature_noise"}
    with pytest.raises(InvalidInputError, match=message):
        corrupt_table(**{**call, "severity": 1, **change})


def test_statistics_of_long_float32_tables_are_exact():
    rng = np.random.default_rng(0)
    X = rng.normal([2010, 1e4], [5, 1], (300_000, 2)).astype(np.float32)
    moved, _ = corrupt_table(X, None, "feature_shift", 5, random_state=0)
    shift = np.abs(moved[0].astype(float) - X[0])
    np.testing.assert_allclose(shift, X.std(axis=0, dtype=float), rtol=1e-3)
    filled, _ = corrupt_table(X, None, "missing_values", 5, random_state=0)
    values, counts = np.unique(filled[:, 0], return_counts=True)
    assert values[counts.argmax()] == np.float32(X[:, 0].mean(dtype=float))


@pytest.mark.parametrize("result", [None, np.ones((2, 3)), (np.ones((2, 3)),)])
def test_a_function_that_returns_no_pair_raises(result):
    def faulty(X, y, severity, rng, reference):
        return result

    with pytest.raises(
        InvalidInputError, match=r"'faulty' must return a pair \(X, y\), but"
    ):
        corrupt_table(np.ones((2, 3)), [0, 1], faulty, 1)


@pytest.mark.parametrize("name", TABULAR_CORRUPTIONS)
@pytest.mark.filterwarnings("error")
def test_an_empty_column_stays_empty(name, table):
    X, y = table
    gone = X.copy()
    gone[:, 3] = np.nan
    out, _ = corrupt_table(gone, y, name, 3, random_state=0)
    expected, _ = corrupt_table(X, y, name, 3, random_state=0)
    assert np.isnan(out[:, 3]).all()
    others = np.arange(X.shape[1]) != 3
    np.testing.assert_array_equal(out[:, others], expected[:, others])
