"""Statistics of the reproduction, against small examples."""

import numpy as np
import pytest
from scipy import stats

pytestmark = pytest.mark.slow


@pytest.fixture
def statistics():
    """Return the module next to the script, which is not a package."""
    import _reproduce_records

    return _reproduce_records


def records_of(table, seeds=None, **more):
    """Return records from {(group, method): values of the seeds}."""
    return [
        {"group": group, "method": method, "seed": seed, "score": value, **more}
        for (group, method), values in table.items()
        for seed, value in zip(seeds or range(len(values)), values)
    ]


# Three methods, three seeds. Row means 2, 5, 8, column means 4, 5, 6, mean 5: the
# additive table is 1 2 3 / 4 5 6 / 7 8 9, and the residuals are -+1 in four places.
BY_HAND = {
    ("g", "deep ensemble"): [2.0, 1.0, 3.0],
    ("g", "a"): [3.0, 6.0, 6.0],
    ("g", "b"): [7.0, 8.0, 9.0],
}


def test_noise_by_hand(statistics):
    sd, dof = statistics.noise_of(records_of(BY_HAND), "score")
    assert dof == 4
    assert sd == pytest.approx(1.0)  # sum of squares 4, over 4


def test_interval_by_hand(statistics):
    records = records_of(BY_HAND)
    methods = statistics.by_method(records, "g")
    pair = methods["a"], methods["deep ensemble"]
    mean, half, p_value = statistics.difference(records, *pair, "score")
    assert mean == pytest.approx(3.0)
    assert half == pytest.approx(2.776445 * np.sqrt(2 / 3), rel=1e-6)  # t(0.975, 4)
    assert p_value == pytest.approx(2 * stats.t.sf(3 / np.sqrt(2 / 3), 4))


def naive_noise(values, n_missing=0):
    """Residual standard deviation of method + seed, by means of rows and columns."""
    rows, columns = values.mean(1, keepdims=True), values.mean(0)
    residuals = values - rows - columns + values.mean()
    dof = (values.shape[0] - 1) * (values.shape[1] - 1) - n_missing
    return np.sqrt((residuals**2).sum() / dof), dof


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (19, 3), (4, 9)])
def test_noise_equals_that_of_means(shape, statistics):
    values = np.random.default_rng(0).normal(size=shape)
    table = {("g", f"m{i}"): row for i, row in enumerate(values)}
    assert statistics.noise_of(records_of(table), "score") == pytest.approx(
        naive_noise(values)
    )


def test_noise_if_a_method_lacks_a_seed(statistics):
    """The missing value is filled in by the formula of Yates, and has no residual."""
    values = np.random.default_rng(0).normal(size=(4, 3))
    values[3, 2] = 0
    n_methods, n_seeds = values.shape
    of_method, of_seed = values[3].sum(), values[:, 2].sum()
    estimate = n_methods * of_method + n_seeds * of_seed - values.sum()
    filled = values.copy()
    filled[3, 2] = estimate / ((n_methods - 1) * (n_seeds - 1))
    table = {("g", f"m{i}"): row for i, row in enumerate(values)}
    table["g", "m3"] = values[3, :2]
    assert statistics.noise_of(records_of(table), "score") == pytest.approx(
        naive_noise(filled, n_missing=1)
    )


def test_coverage_of_pooled_intervals(statistics):
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        values = rng.normal(size=(6, 3)) + rng.normal(size=3)
        records = records_of({("g", str(i)): row for i, row in enumerate(values)})
        methods = statistics.by_method(records, "g")
        found = statistics.difference(records, methods["0"], methods["1"], "score")
        inside += abs(found.mean) < found.half
    assert 0.92 < inside / 400 < 0.98


def test_an_ensemble_with_two_names_counts_once(statistics):
    twice = records_of(BY_HAND) + [
        record | {"group": "other", "method": "c"}
        for record in records_of(BY_HAND)
        if record["method"] == "b"
    ]
    assert statistics.noise_of(twice, "score") == pytest.approx((1.0, 4))


def test_methods_with_one_seed_do_not_change_the_noise(statistics):
    more = records_of(BY_HAND) + records_of({("g", "c"): [100.0]})
    assert statistics.noise_of(more, "score") == pytest.approx((1.0, 4))


def test_one_seed_has_no_interval(statistics):
    records = records_of({("g", "a"): [1.0], ("g", "b"): [3.0]})
    methods = statistics.by_method(records, "g")
    mean, half, p_value = statistics.difference(
        records, methods["b"], methods["a"], "score"
    )
    assert mean == 2.0
    assert np.isnan(half)
    assert np.isnan(p_value)


def test_many_seeds_are_paired(statistics):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 10)) * np.array([[1], [1], [50]])  # the last is noisy
    records = records_of({("g", name): row for name, row in zip("abc", values)})
    methods = statistics.by_method(records, "g")
    found = statistics.difference(records, methods["a"], methods["b"], "score")
    expected = stats.ttest_rel(values[0], values[1])
    assert found.p_value == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert (found.mean, found.half) == pytest.approx(
        ((low + high) / 2, (high - low) / 2)
    )


def test_equal_cost_interpolates_deep_ensembles(statistics):
    """Half between two deep ensembles: 1 + 1/4 + 1/4 variances instead of 2."""
    rng = np.random.default_rng(0)
    names = [("g", "deep ensemble"), ("h", "deep ensemble"), ("g", "a"), ("g", "b")]
    values = rng.normal(size=(4, 3))
    records = [
        record | {"passes": passes}
        for name, row, passes in zip(names, values, (10, 20, 15, 20))
        for record in records_of({name: row})
    ]
    sd, dof = naive_noise(values)
    methods = statistics.by_method(records, "g")
    for method, squares, weights in (
        ("a", 1.5, [-0.5, -0.5, 1, 0]),
        ("b", 2, [0, -1, 0, 1]),
    ):
        found = statistics.at_equal_cost(records, methods[method], "score")
        assert found.mean == pytest.approx((weights @ values).mean())
        half = stats.t.ppf(0.975, dof) * sd * np.sqrt(squares / 3)
        assert found.half == pytest.approx(half)


def test_holm_by_hand(statistics):
    adjusted = statistics.holm([0.04, 0.01, np.nan, 0.03, 0.9])
    # 4 x 0.01, 3 x 0.03, 2 x 0.04 raised to the one before, 0.9
    np.testing.assert_allclose(adjusted, [0.09, 0.04, np.nan, 0.09, 0.9])
    assert statistics.holm([0.6, 0.7]).tolist() == [1.0, 1.0]
    assert statistics.holm([]).size == 0


def test_holm_equals_the_closed_test(statistics):
    """Reject if Bonferroni rejects every intersection with the hypothesis."""
    from itertools import combinations

    p_values = np.array([0.001, 0.012, 0.02, 0.2, 0.04])
    every = [
        list(chosen) for size in range(1, 6) for chosen in combinations(range(5), size)
    ]
    naive = [
        max(min(1, len(s) * p_values[s].min()) for s in every if i in s)
        for i in range(5)
    ]
    np.testing.assert_allclose(statistics.holm(p_values), naive)


def test_selected_row_is_scored_on_another_seed(statistics):
    table = {
        ("g", "deep ensemble"): [0.0, 0.0, 0.0],
        ("h", "deep ensemble"): [0.0, 0.0, 0.0],
        ("g", "lucky"): [9.0, -3.0, -3.0],
        ("g", "steady"): [1.0, 2.0, 3.0],
    }
    passes = {"lucky": 15, "steady": 15}
    records = [
        record
        | {"passes": passes.get(record["method"], 20 if record["group"] == "h" else 10)}
        for record in records_of(table)
    ]
    gains, names = statistics.chosen_on_other_seeds(records, "score")
    assert names == ["steady", "lucky", "lucky"]  # by (5/2, -3), (2, 3), (3/2, 3)
    assert gains.tolist() == [1.0, -3.0, -3.0]


def test_slopes_are_of_logarithms(statistics):
    rng = np.random.default_rng(0)
    sharpness = rng.uniform(0.1, 10, (3, 10))
    methods = {
        str(i): {
            seed: {"sharpness": x, "der": 2 * x**0.3} for seed, x in enumerate(row)
        }
        for i, row in enumerate(sharpness)
    }
    assert statistics.log_slope(methods) == pytest.approx((0.3, 0.0), abs=1e-9)


def test_the_jackknife_is_near_the_error_of_least_squares(statistics):
    rng = np.random.default_rng(1)
    x = rng.normal(size=200)
    y = 0.5 * x + rng.normal(size=200)
    methods = {
        "m": {
            seed: {"sharpness": np.exp(a), "der": np.exp(b)}
            for seed, (a, b) in enumerate(zip(x, y))
        }
    }
    slope, half = statistics.log_slope(methods)
    line = stats.linregress(x, y)
    assert slope == pytest.approx(line.slope)
    assert half == pytest.approx(1.972 * line.stderr, rel=0.15)
