"""Center, scale and relevance of the features of a table."""

import numpy as np
import pytest
import torch
from sklearn.feature_selection import f_classif

from sklearn_sharpbalance.data import TrainingData, statistics
from sklearn_sharpbalance.data.input_statistics import input_statistics
from sklearn_sharpbalance.data.inputs import InputFormat
from sklearn_sharpbalance.data.statistics import (
    class_steps,
    column_blocks,
    linear_pieces,
    moments,
    piecewise_linear,
    quartiles,
    relevance,
    soft_clip,
)
from tests.cases import rest_slow

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 5)) * [1, 10, 0.1, 3, 5] + [0, 7, -2, 0, 100]
NORMAL_RANGE = 1.3489795  # interquartile range of the standard normal distribution


def test_quartiles_equal_those_of_numpy():
    median, scale = quartiles(X)
    low, middle, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
    np.testing.assert_array_equal(median, middle)
    np.testing.assert_allclose(scale, (high - low) / NORMAL_RANGE, rtol=1e-3)


def test_weights_count_as_repeated_rows():
    weight = RNG.integers(0, 4, len(X))
    repeated = np.repeat(X, weight, axis=0)
    for statistic in (quartiles, moments):
        for got, expected in zip(statistic(X, weight), statistic(repeated)):
            np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_one_outlier_hardly_changes_quartiles():
    expected_median, expected_scale = quartiles(X)
    median, scale = quartiles(np.vstack([X, np.full((1, 5), 1e6)]))
    assert np.all(np.abs(median - expected_median) < 0.5 * expected_scale)
    np.testing.assert_allclose(scale, expected_scale, rtol=0.3)


def test_scale_of_a_rare_value_is_half_of_the_range():
    column = np.zeros((50, 1))
    column[:5] = 4.0
    assert quartiles(column) == (0.0, 2.0)


def test_quartiles_of_many_rows_use_some_of_them(monkeypatch):
    many = RNG.standard_normal((5000, 2))
    monkeypatch.setattr(statistics, "MAX_ROWS", 1000)
    np.testing.assert_array_equal(quartiles(many), quartiles(many[::5]))


def test_statistics_of_many_images_use_some_of_them():
    images = RNG.integers(0, 256, (9000, 1, 1, 1))
    fmt = InputFormat("images", (1, 1, 1), (1, 1, 1))
    for weight, used in ((None, images[::2]), (np.arange(9000) % 2, images[1::2])):
        data = TrainingData(images, np.zeros(9000, int), weight)
        assert input_statistics(data, fmt).center == pytest.approx(used.mean())


def test_small_blocks_give_the_same_quartiles(monkeypatch):
    expected = quartiles(X)
    monkeypatch.setattr(statistics, "BLOCK_SIZE", 1)
    assert len(column_blocks(X)) == X.shape[1]
    np.testing.assert_array_equal(quartiles(X), expected)


def test_soft_clip_is_bounded_and_increasing():
    values = torch.linspace(-50, 50, 1001, dtype=torch.float64)
    clipped = soft_clip(values, 3.0)
    assert clipped.abs().max() < 3
    assert (clipped.diff() > 0).all()
    assert soft_clip(torch.zeros(1), 3.0) == 0
    small = values.abs() < 0.3
    torch.testing.assert_close(clipped[small], values[small], rtol=0.01, atol=0)


@pytest.mark.parametrize("n_classes", rest_slow([3, 2]))
def test_relevant_features_are_found(n_classes):
    table = np.random.default_rng(1).standard_normal((300, 60))
    total = table[:, 4] + table[:, 9]
    y = np.searchsorted([0.0] if n_classes == 2 else [-0.5, 0.5], total)
    found = relevance(table, y)
    assert set(np.flatnonzero(found > 0.4)) == {4, 9}
    assert np.median(found) == 0.005


def test_features_that_only_matter_together_are_found():
    """An analysis of variance of each feature does not find them."""
    table = np.random.default_rng(1).standard_normal((800, 20))
    y = (table[:, 4] * table[:, 9] > 0).astype(int)
    assert f_classif(table, y)[0][[4, 9]].max() < 4
    found = relevance(table, y)
    assert set(np.flatnonzero(found > 0.005)) == {4, 9}


@pytest.mark.parametrize("n_rows", rest_slow([20, 100, 400], keep=2))
def test_no_feature_of_noise_is_relevant(n_rows):
    rng = np.random.default_rng(2)
    table, y = rng.standard_normal((n_rows, 200)), np.arange(n_rows) % 2
    assert np.mean(relevance(table, y) > 0.3) < 0.01


def test_relevance_ignores_rows_without_weight():
    table = np.random.default_rng(1).standard_normal((200, 10))
    y = (table[:, 4] > 0).astype(int)
    weight = np.repeat([1.0, 0.0], 100)
    np.testing.assert_array_equal(
        relevance(table, y, weight), relevance(table[:100], y[:100])
    )


def test_too_few_rows_for_a_split_keep_all_features():
    table = np.random.default_rng(1).standard_normal((8, 4))
    np.testing.assert_array_equal(relevance(table, np.arange(8) % 2), 1.0)


def test_pieces_are_parts_between_quantiles():
    n_pieces = 4
    knots = np.quantile(
        X, np.linspace(0, 1, n_pieces + 1), axis=0, method="inverted_cdf"
    )
    pieces = torch.as_tensor(linear_pieces(X, n_pieces))
    encoded = piecewise_linear(torch.as_tensor(X), pieces).numpy()
    for row, values in zip(X, encoded.reshape(len(X), X.shape[1], n_pieces)):
        for column, parts in enumerate(values):
            below = [
                np.interp(row[column], knots[k : k + 2, column], [0, 1])
                for k in range(n_pieces)
            ]
            np.testing.assert_allclose(parts, statistics.PIECE_HEIGHT * np.array(below))


def test_steps_lie_at_the_splits_of_trees():
    z = np.repeat(np.arange(30.0), 20)
    y = np.digitize(z, [7.5, 21.5])
    noise = np.random.default_rng(0).normal(size=600)
    Z = np.stack([z, np.tile([0, 1], 300), noise, 0 * z], axis=1)
    steps = class_steps(Z, y, n_steps=16)
    np.testing.assert_array_equal(steps, [[0, 0], [7, 21], [1, 1]])
    encoded = piecewise_linear(torch.as_tensor(Z), torch.as_tensor(steps)).sum(dim=1)
    np.testing.assert_array_equal(encoded / encoded.max(), y / 2)
    assert class_steps(Z, y, n_steps=1).shape == (3, 1)
    weight = (z < 15).astype(float)  # the others do not count
    assert class_steps(Z, y, n_steps=16, weight=weight)[1].tolist() == [7]
    Z[0, 2] = 1e300
    assert class_steps(Z, y, n_steps=16).shape == (3, 2)


def test_pieces_between_equal_quantiles_are_zero():
    column = np.array([[0.0]] * 9 + [[1.0]])
    pieces = torch.as_tensor(linear_pieces(column, 4))
    encoded = piecewise_linear(torch.as_tensor(column), pieces)
    assert torch.isfinite(encoded).all()
    assert (encoded[:, :3] == 0).all()
    assert encoded[:, 3].tolist() == [0] * 9 + [statistics.PIECE_HEIGHT]
