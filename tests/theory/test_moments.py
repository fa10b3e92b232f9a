"""Moments of Wishart matrices against closed forms, enumeration and simulation."""

from fractions import Fraction
from math import comb, factorial, prod

import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory import wishart_moment


def narayana(m, k):
    return comb(m - 1, k - 1) * comb(m, k - 1) // k


@pytest.mark.parametrize("m", range(1, 9))
def test_moments_of_one_column_or_row_equal_those_of_chi_squared(m):
    assert wishart_moment(m, n=7, d=1) == prod(7 + 2 * q for q in range(m))
    length = Fraction(prod(5 + 2 * q for q in range(m)), 5**m)
    assert wishart_moment(m, n=1, d=5) == length / 5


def test_printed_moments_equal_those_of_the_marchenko_pastur_density():
    r = 4.0
    low, high = (np.sqrt(r) - 1) ** 2, (np.sqrt(r) + 1) ** 2
    turn = (np.arange(2000) + 0.5) / 2000 * np.pi
    x = (low + high) / 2 + (high - low) / 2 * np.cos(turn)
    root = (high - low) / 2 * np.sin(turn)
    weight = root**2 / (2 * np.pi * x) * (np.pi / 2000)  # density times dx
    assert weight.sum() == pytest.approx(1, abs=1e-9)
    for m in range(1, 12):
        printed = wishart_moment(m, n=40, d=10, variant="printed")
        assert float(printed) == pytest.approx(np.sum(weight * x**m), rel=1e-9)


def trace_moment(m, n, d):
    r"""E tr (G'G)^m for an n x d matrix of standard normal entries, over partitions.

    The power sum is expanded in zonal polynomials, whose expectations are products
    (Hanlon, Stanley and Stembridge 1992),

    .. math::

        2m \sum_{\lambda \vdash m}
        \frac{\prod_{s \ne (1,1)} (2a'_s - l'_s)}{j_\lambda}
        \prod_s (d + 2a'_s - l'_s)(n + 2a'_s - l'_s)

    with the coarm a' and coleg l' of each box. The first product vanishes unless
    the partition is (a, b, 1^c).
    """
    row_one = prefix_products(m, lambda j: (d + 2 * j) * (n + 2 * j))
    row_two = prefix_products(
        m, lambda j: (2 * j - 1) * (d + 2 * j - 1) * (n + 2 * j - 1)
    )
    column = prefix_products(m, lambda i: -(i + 2) * (d - i - 2) * (n - i - 2))
    # The single row (m) has no second row; all others are (a, b, 1^c) with b >= 1.
    total = Fraction(2 ** (m - 1) * factorial(m - 1) * row_one[m], factorial(2 * m))
    for a in range(1, m):
        arms = 2 ** (a - 1) * factorial(a - 1) * row_one[a]
        for b in range(1, min(a, m - a) + 1):
            c = m - a - b
            total += Fraction(arms * row_two[b] * column[c], hooks(a, b, c))
    return 2 * m * total


def prefix_products(m, factor):
    """[1, factor(0), factor(0) factor(1), ...] of length m + 1."""
    products = [1]
    for j in range(m):
        products.append(products[-1] * factor(j))
    return products


def hooks(a, b, c):
    """Product over the boxes of (a, b, 1^c) of (2 arm + leg + 1)(2 arm + leg + 2)."""
    corner = (2 * a + c) * (2 * a + c + 1)
    above_second = factorial(2 * a - 1) // factorial(2 * (a - b) + 1)
    rest_of_first = factorial(2 * (a - b))
    second = (2 * b + c - 1) * (2 * b + c) * factorial(2 * (b - 1))
    column = factorial(c) * factorial(c + 1)
    return corner * above_second * rest_of_first * second * column


@pytest.mark.parametrize("m", range(1, 13))
def test_recursion_equals_the_sum_over_partitions(m):
    """Both are polynomials of degree m in n and in d: m + 1 values of each prove it."""
    for n in range(1, m + 2):
        for d in range(1, m + 2):
            moment = wishart_moment(m, n=n, d=d)
            assert moment == trace_moment(m, n, d) / d ** (m + 1)


def test_printed_moments_equal_the_sum_over_narayana_numbers():
    for m in (1, 2, 3, 7, 40):
        for n, d in ((30, 7), (5, 5), (2, 9)):
            r = Fraction(n, d)
            total = sum(r**k * narayana(m, k) for k in range(1, m + 1))
            assert wishart_moment(m, n=n, d=d, variant="printed") == total


def test_bad_arguments_raise():
    message = r"^m must be an int in the range \[0, inf\), got -1\."
    with pytest.raises(InvalidInputError, match=message):
        wishart_moment(-1, n=2, d=2)
    wishart_moment(2, n=2, d=2)  # a cached result must not hide the error of 2.0
    for m, n, d, name in [(2.0, 2, 2, "m"), (2, 0, 2, "n"), (2, 2, [2], "d")]:
        with pytest.raises(InvalidInputError, match=rf"^{name} must be an int"):
            wishart_moment(m, n=n, d=d)
    with pytest.raises(InvalidInputError, match=r"Unknown variant 'paper'"):
        wishart_moment(1, n=2, d=2, variant="paper")
