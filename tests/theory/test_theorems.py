"""Theorems 1 and 2 against brute force, identities and simulated models."""

import math
from fractions import Fraction
from inspect import signature
from itertools import product

import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory import (
    phi,
    sam_diversity,
    sam_sharpness_bounds,
    simulate,
    subset_diversity,
    subset_sharpness_bound,
    wishart_moment,
)
from sklearn_sharpbalance.theory._theorems import _gradient_constant
from tests.cases import rest_slow
from tests.theory.test_moments import narayana

SIZES = {"n": 60, "d": 20}


def grid(ks, etas, rhos):
    return [np.array(axis) for axis in zip(*product(ks, etas, rhos))]


@pytest.mark.parametrize(("i", "j"), [(0, 0), (1, 0), (3, 0), (4, 2), (6, 1)])
def test_printed_phi_equals_the_triple_sum(i, j):
    eta, rho, n, d = Fraction(1, 8), Fraction(3, 4), 60, 20
    ratio = Fraction(n, d)
    total = Fraction(int(j == 0))
    for k1, k2 in product(range(i + 1), repeat=2):
        k3 = i - k1 - k2
        m = k2 + 2 * k3 + j
        if k3 < 0 or m == 0:
            continue
        count = math.factorial(i) // math.prod(map(math.factorial, (k1, k2, k3)))
        moment = sum(
            ratio**m * (1 / ratio) ** (m - k) * narayana(m, k) for k in range(1, m + 1)
        )
        total += count * (-eta) ** (k2 + k3) * rho**k3 * moment
    value = phi(i, j, eta=0.125, rho=0.75, n=n, d=d, variant="printed")
    assert value == float(total)


@pytest.mark.parametrize(("i", "j"), rest_slow([(4, 2), (2, 0), (4, 0), (5, 1)]))
def test_phi_equals_the_mean_over_matrices(i, j):
    rng = np.random.default_rng(1)
    A = rng.standard_normal((4000, 60, 20)) / np.sqrt(20)
    x = np.linalg.eigvalsh(A.swapaxes(1, 2) @ A)
    sample = ((1 - 0.1 * x - 0.02 * x**2) ** i * x**j).mean(axis=1)
    error = sample.std() / np.sqrt(len(sample))
    value = phi(i, j, eta=0.1, rho=0.2, **SIZES)
    assert abs(sample.mean() - value) < 4 * error


def test_phi_is_exact_where_floats_cancel():
    """1 - eta x is small on the whole spectrum: terms of 1e12 sum to 1e-13."""
    i, eta, n, d = 40, 1 / 20, 3000, 150
    value = phi(i, 0, eta=eta, rho=0.0, n=n, d=d)
    naive = sum(
        math.comb(i, m) * (-eta) ** m * float(wishart_moment(m, n=n, d=d))
        for m in range(i + 1)
    )
    rng = np.random.default_rng(0)
    A = rng.standard_normal((4, n, d)) / np.sqrt(d)
    x = np.linalg.eigvalsh(A.swapaxes(1, 2) @ A)
    assert value == pytest.approx(np.mean((1 - eta * x) ** i), rel=0.5)
    assert abs(naive - value) > 100 * value  # without exact sums


WILD = {"eta": 1e20, "rho": 1e20, "n": 30, "d": 10}


@pytest.mark.parametrize("variant", ["derived", "printed"])
@pytest.mark.parametrize("scale", [1e10, 1e13, 1e20, 1e60])
def test_theorems_beyond_the_range_of_floats_are_infinite(variant, scale):
    wild = {**WILD, "eta": scale, "rho": scale, "variant": variant}
    lower, upper = sam_sharpness_bounds(6, radius=0.5, **wild)
    assert lower == -math.inf
    assert upper > 1e100
    assert (upper == math.inf) == (phi(12, 2, **wild) == math.inf)
    assert sam_diversity(12, **wild) == math.inf
    parts = {"n_subsets": 2, **wild}
    assert subset_diversity(12, **parts) == math.inf
    assert subset_sharpness_bound(12, radius=0.5, **parts) == math.inf


def test_diversity_of_untrained_models_is_their_variance():
    assert sam_diversity(5, eta=0.0, rho=0.5, sigma=3.0, **SIZES) == 9.0
    assert subset_diversity(5, eta=0.0, rho=0.5, n_subsets=3, sigma=3.0, **SIZES) == 9.0


@pytest.mark.parametrize("variant", ["derived", "printed"])
def test_theorem_2_with_one_subset_equals_theorem_1(variant):
    common = {"eta": 0.05, "rho": 0.3, "variant": variant, **SIZES}
    assert subset_diversity(3, n_subsets=1, **common) == sam_diversity(3, **common)
    _, upper = sam_sharpness_bounds(3, radius=0.4, theta_norm=2.0, **common)
    bound = subset_sharpness_bound(3, n_subsets=1, radius=0.4, theta_norm=2.0, **common)
    assert bound == pytest.approx(upper, rel=1e-12)


@pytest.mark.parametrize(
    ("k", "eta", "rho"), rest_slow([(3, 0.4, 0.3), (2, 0.1, 0.2), (1, 0.3, 0)])
)
def test_gradient_constant_equals_simulated_traces(k, eta, rho):
    n, d, parts, repeats = 120, 30, 4, 1500
    subset = {"eta": eta, "rho": rho, "n": n // parts, "d": d}
    rng = np.random.default_rng(2)
    traces = np.empty(repeats)
    for row in range(repeats):
        A = rng.standard_normal((parts, n // parts, d)) / np.sqrt(d)
        W = A.swapaxes(1, 2) @ A
        B = np.eye(d) - eta * W - eta * rho * W @ W
        steps = np.linalg.matrix_power(B, k).sum(axis=0)
        traces[row] = np.sum((W.sum(axis=0) @ steps) ** 2) / d
    error = traces.std() / np.sqrt(repeats)
    constants = {
        variant: _gradient_constant(k, parts, {**subset, "variant": variant})
        for variant in ("derived", "printed")
    }
    # Freeness has an error of order 1/d; that of the printed constant is much larger.
    tolerance = 4 * error + 0.01 * traces.mean()
    assert abs(constants["derived"] - traces.mean()) < tolerance
    assert abs(constants["printed"] - traces.mean()) > tolerance


GENTLE = grid((1, 2, 4), (0.001, 0.002, 0.005), (0.0, 0.05, 0.1))
PAPER = grid((2, 4), (0.1, 0.05, 0.01), (0.3, 0.4, 0.5))


@pytest.mark.parametrize(
    ("points", "theta_norm"),
    rest_slow([(GENTLE, 3.0), (PAPER, 1.0), (GENTLE, 1.0), (PAPER, 3.0)]),
    ids=["gentle-3", "paper-1", "gentle-1", "paper-3"],
)
def test_theorem_1_contains_the_simulation(points, theta_norm):
    sizes = {"n": 1000, "d": 50}
    run = simulate(
        *points,
        radius=0.5,
        n_test=200,
        n_matrices=100,
        theta_norm=theta_norm,
        random_state=0,
        **sizes,
    )
    inside, informative = [], []
    for p, (k, eta, rho) in enumerate(zip(*points)):
        common = {"eta": eta, "rho": rho, **sizes}
        lower, upper = sam_sharpness_bounds(
            int(k), radius=0.5, theta_norm=theta_norm, **common
        )
        inside.append(lower <= run.sharpness[p] <= upper)
        informative.append(lower > 0)
        assert run.diversity[p] == pytest.approx(
            sam_diversity(int(k), **common), rel=0.05
        )
    assert np.mean(inside) >= 0.95
    if points is GENTLE:
        assert np.mean(informative) > 0.9


@pytest.mark.parametrize("parts", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_theorem_2_contains_the_simulation(parts):
    points = grid((2, 4), (0.1, 0.03, 0.01), (0.1, 0.3, 0.5))
    sizes = {"n": 500, "d": 50}
    run = simulate(
        *points,
        radius=0.5,
        n_test=200,
        n_subsets=parts,
        n_matrices=120,
        theta_norm=2.0,
        random_state=0,
        **sizes,
    )
    inside, close = [], []
    for p, (k, eta, rho) in enumerate(zip(*points)):
        common = {
            "eta": eta,
            "rho": rho,
            "n_subsets": parts,
            "theta_norm": 2.0,
            **sizes,
        }
        bound = subset_sharpness_bound(int(k), radius=0.5, **common)
        inside.append(run.sharpness[p] <= bound)
        diversity = subset_diversity(int(k), **common)
        close.append(abs(run.diversity[p] / diversity - 1) < 0.05)
    assert np.mean(inside) >= 0.95
    assert np.mean(close) >= 0.95


GOOD = {"k": 2, "eta": 0.1, "rho": 0.1, **SIZES}
FUNCTIONS = {
    phi: {"i": 2, "j": 0},
    sam_diversity: {},
    sam_sharpness_bounds: {"radius": 0.5},
    subset_diversity: {"n_subsets": 3},
    subset_sharpness_bound: {"n_subsets": 3, "radius": 0.5},
}


WRONG = {
    "k": [-1, 1.5, True],
    "i": [-1],
    "eta": [-1, math.nan, "0.1"],
    "rho": [math.nan, math.inf],
    "n": [60.0],
    "d": [0],
    "sigma": [-1.0],
    "radius": [math.nan],
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_raises_for_invalid_arguments(function):
    known = set(signature(function).parameters)
    good = {name: v for name, v in GOOD.items() if name in known} | FUNCTIONS[function]
    for name in known & set(WRONG):
        for value in WRONG[name]:
            message = rf"^{name} must be .*, got {value!r}"
            with pytest.raises(InvalidInputError, match=message):
                function(**{**good, name: value})
    with pytest.raises(InvalidInputError, match=r"Unknown variant 'x'\. Choose one of"):
        function(**good, variant="x")
    if "n_subsets" in known:
        with pytest.raises(InvalidInputError, match=r"divide n=60, got 7"):
            function(**{**good, "n_subsets": 7})


def test_a_teacher_of_length_zero_has_no_printed_bound():
    arguments = {**GOOD, "radius": 0.5, "theta_norm": 0.0}
    with pytest.raises(InvalidInputError, match="theta_norm must be > 0 with variant"):
        sam_sharpness_bounds(**arguments, variant="printed")
    lower, upper = sam_sharpness_bounds(**arguments)
    assert 0 < lower < upper
