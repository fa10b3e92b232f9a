"""The simulation against naive loops, and its sharpness against maximisers."""

import numpy as np
import pytest
from scipy import optimize

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory import simulate
from sklearn_sharpbalance.theory._simulate import (
    _exact_maximum,
    _train,
)


def naive_sam(A, theta, teacher, k, eta, rho):
    """Iterate SAM as in the paper: the perturbation is rho times the gradient."""
    for _ in range(k):
        gradient = A.T @ A @ (theta - teacher)
        theta = theta - eta * A.T @ A @ (theta + rho * gradient - teacher)
    return theta


@pytest.mark.parametrize("n_parts", [1, 3])
def test_results_equal_those_of_a_naive_loop(n_parts):
    rng = np.random.default_rng(0)
    n, d, k, eta, rho, radius = 24, 6, 3, 0.1, 0.2, 0.7
    A, T = rng.standard_normal((n, d)), rng.standard_normal((9, d))
    starts, teacher = rng.standard_normal((5, d)), rng.standard_normal(d)
    which = rng.integers(n_parts, size=5)
    parts = A.reshape(n_parts, -1, d)
    [diversity], gradients, curvature = _train(
        subsets=parts,
        T=T,
        starts=starts,
        which=which,
        teacher=teacher,
        grid=[(k, eta, rho)],
    )
    [sharpness] = _exact_maximum(curvature, gradients, radius)
    ends = [
        naive_sam(parts[s], start, teacher, k, eta, rho)
        for s, start in zip(which, starts)
    ]
    expected = np.var([T @ end for end in ends], axis=0, ddof=1).mean()
    assert diversity == pytest.approx(expected, rel=1e-9)
    mean = np.mean(
        [naive_sam(part, np.zeros(d), teacher, k, eta, rho) for part in parts], axis=0
    )

    def loss(theta):
        return 0.5 * np.sum((A @ (theta - teacher)) ** 2)

    def fall(point):
        return loss(mean) - loss(mean + radius * point / np.linalg.norm(point))

    found = min(
        optimize.minimize(fall, rng.standard_normal(d), tol=1e-12).fun for _ in range(4)
    )
    assert sharpness == pytest.approx(-found, rel=1e-6)


def ascent(curvature, gradients, radius, step=0.1, n_steps=2000):
    """Approximate the maxima by projected gradient ascent from zero, (P,)."""
    points = np.zeros_like(gradients)
    for _ in range(n_steps):
        points = points + step * (curvature * points + gradients)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        points *= np.minimum(1.0, radius / np.maximum(lengths, 1e-300))
    return 0.5 * points**2 @ curvature + np.sum(gradients * points, axis=1)


def test_exact_maximum_is_an_upper_bound_that_is_reached():
    rng = np.random.default_rng(1)
    for _ in range(10):
        curvature = rng.permutation(np.linspace(0, 5, 8))
        gradients = rng.standard_normal((7, 8)) * 10.0 ** np.arange(-4, 3)[:, None]
        radius = rng.uniform(0.1, 3)
        best = _exact_maximum(curvature, gradients, radius)
        points = rng.standard_normal((20_000, 8))
        points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
        values = 0.5 * (points**2 @ curvature)[:, None] + points @ gradients.T
        assert (values.max(axis=0) <= best * (1 + 1e-12)).all()
        climbed = ascent(curvature, gradients, radius)
        np.testing.assert_allclose(climbed, best, rtol=1e-3)


def test_maximum_in_degenerate_cases():
    curvature = np.array([1.0, 3.0, 2.0])
    assert _exact_maximum(curvature, np.zeros((1, 3)), 2.0) == pytest.approx(6.0)
    assert _exact_maximum(curvature, np.ones((1, 3)), 0.0) == 0.0
    # The maximum has a part along the steepest axis, although its gradient is zero.
    hard = _exact_maximum(curvature, np.array([[0.1, 0.0, 0.0]]), 1.0)
    along = np.linspace(-1, 1, 200_001)
    best = np.max(0.5 * along**2 + 1.5 * (1 - along**2) + 0.1 * along)
    assert hard == pytest.approx(best, rel=1e-8)


def test_grid_is_measured_on_the_same_matrices():
    common = {"n": 40, "d": 10, "n_matrices": 4, "n_starts": 3, "random_state": 3}
    run = simulate([[1], [2]], 0.1, [0.1, 0.2, 0.3], **common)
    assert run.diversities.shape == run.sharpnesses.shape == (4, 2, 3)
    alone = simulate(2, 0.1, 0.2, **common)
    np.testing.assert_allclose(run.diversities[:, 1, 1], alone.diversities)
    np.testing.assert_allclose(run.sharpness[1, 1], alone.sharpness)
    expected = alone.diversities.std(ddof=1) / 2
    np.testing.assert_allclose(alone.diversity_error, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_subsets": 7}, r"divide n=3000, got 7"),
        ({"n_starts": 1}, r"at least 2 for variances, got 50 and 1"),
        ({"n_starts": 2.5}, r"^n_starts must be an int in .*, got 2\.5"),
        ({"n_matrices": -3}, r"^n_matrices must be an int in .* got -3"),
        ({"d": 0}, r"^d must be an int in the range .*, got 0"),
        ({"n_subsets": 0}, r"^n_subsets must be an int in .*, got 0"),
        ({"n_test": 0}, r"^n_test must be an int in .*, got 0"),
        ({"radius": np.nan}, r"^radius must be a float in .*, got nan"),
        ({"sigma": -1.0}, r"^sigma must be a float in .*, got -1\.0"),
        ({"theta_norm": np.inf}, r"^theta_norm must be a float in .*, got inf"),
        ({"k": 1.5}, r"^k must be integers and >= 0, got 1\.5"),
        ({"k": [1, -1]}, r"^k must be integers and >= 0, got \[1, -1\]"),
        ({"eta": -1}, r"^eta must be finite and >= 0, got -1"),
        ({"rho": [0.1, np.nan]}, r"^rho must be finite and >= 0, got \[0\.1, nan\]"),
        ({"rho": "0.1"}, r"^rho must be finite and >= 0, got '0\.1'"),
        ({"eta": []}, r"not be empty, got k \(\), eta \(0,\)"),
        ({"k": [1, 2], "rho": [0.1] * 3}, r"one shape, got k \(2,\).*rho \(3,\)"),
    ],
)
def test_bad_arguments_raise(change, message):
    with pytest.raises(InvalidInputError, match=message):
        simulate(**{"k": 1, "eta": 0.1, "rho": 0.1, **change})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_subsets", [1, 3])
def test_settings_that_diverge_are_infinite(n_subsets):
    common = {"n": 60, "d": 20, "n_matrices": 3, "n_starts": 6, "random_state": 0}
    common["n_subsets"] = n_subsets
    run = simulate([1, 95, 400], 1.0, 1.0, **common)
    assert (run.diversity[2], run.sharpness[2]) == (np.inf, np.inf)
    assert (run.diversity_error[2], run.sharpness_error[2]) == (np.inf, np.inf)
    assert not np.isnan([run.diversities, run.sharpnesses]).any()
    alone = simulate(1, 1.0, 1.0, **common)
    np.testing.assert_array_equal(run.sharpnesses[:, 0], alone.sharpnesses)
    np.testing.assert_array_equal(run.diversity_error[0], alone.diversity_error)
