"""The expectation that both theorems are written in."""

import math
from fractions import Fraction
from numbers import Rational

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    NON_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.theory._moments import VARIANTS, scaled_moments

__all__ = ["largest_eigenvalue", "phi", "scaled"]


def phi(
    i: int, j: int, *, eta: float, rho: float, n: int, d: int, variant: str = "derived"
) -> float:
    r"""Expectation :math:`\phi(i, j) I = E[B^i (A^\top A)^j]`.

    Here :math:`B = I - \eta A^\top A - \eta\rho (A^\top A)^2` and A is n x d with
    N(0, 1/d) entries.

    Parameters
    ----------
    i, j : int
        Powers, at least 0.
    eta : float
        Step size of SAM.
    rho : float
        Perturbation of SAM (the gradient is not normalised in this model).
    n, d : int
        Samples and features.
    variant : {"derived", "printed"}, default="derived"
        "derived" uses the exact moments of the Wishart matrix, "printed" the paper's
        leading order; see :func:`wishart_moment`. On the paper's grid for subsets
        (n = 300, d = 150, k up to 12) the printed value is as small as a quarter of the
        true one.

    Returns
    -------
    float
        Correctly rounded: ``eta`` and ``rho`` are taken as exact fractions, and the
        alternating sum is computed in integers and divided once. Infinite beyond the
        range of floats; then the theorems are infinite, too. The cost grows with the
        cube of the powers: 0.01 s at i = 60, some seconds at 800.

    Notes
    -----
    .. math::

        \phi(i, j) = \sum_{k_1+k_2+k_3=i} \frac{i!}{k_1!k_2!k_3!}
        (-\eta)^{k_2+k_3} \rho^{k_3}\, M_{k_2+2k_3+j}

    with :math:`M_m` the moments and :math:`M_0 = 1`.

    Examples
    --------
    >>> from sklearn_sharpbalance.theory import phi
    >>> phi(7, 0, eta=0.0, rho=0.5, n=3000, d=150)
    1.0
    >>> phi(1, 0, eta=0.5, rho=0.0, n=20, d=10)  # 1 - eta n/d
    0.0
    """
    check_numbers(NON_NEGATIVE_INTEGER, i=i, j=j)
    check_numbers(POSITIVE_INTEGER, n=n, d=d)
    check_numbers(NON_NEGATIVE, eta=eta, rho=rho)
    check_choice("variant", variant, VARIANTS)
    i, j, n, d = int(i), int(j), int(n), int(d)
    scale, coefficients = _step_polynomial(i, eta, rho)
    moments = scaled_moments(2 * i + j, n, d, variant)[j:]
    total = 0  # times scale^i d^(2i + j + 1)
    for coefficient, moment in zip(coefficients, moments, strict=True):
        total = total * d + coefficient * moment
    try:
        return total / (scale**i * d ** (2 * i + j + 1))
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _step_polynomial(i: int, eta: float, rho: float) -> tuple[int, list[int]]:
    """Return s and the coefficients of s^i (1 - eta x - eta rho x^2)^i, integers."""
    a, b = _as_fraction(eta), _as_fraction(rho)
    scale = a.denominator * b.denominator
    s1, s2 = -a.numerator * b.denominator, -a.numerator * b.numerator
    # The power p = q^i satisfies q p' = i q' p, a recursion for its coefficients.
    coefficients = [0, scale**i]
    for m in range(2 * i):
        value = (i - m) * s1 * coefficients[-1]
        value += (2 * i - m + 1) * s2 * coefficients[-2]
        coefficients.append(value // (scale * (m + 1)))
    return scale, coefficients[1:]


def _as_fraction(value: float) -> Fraction:
    return Fraction(value if isinstance(value, Rational) else float(value))


def largest_eigenvalue(n: int, d: int, variant: str) -> float:
    """Return the bound of the expected largest eigenvalue of A'A."""
    slack = 0.0 if variant == "printed" else 1 / d
    return (math.sqrt(n / d) + 1) ** 2 + slack


def scaled(factor: float, value: float) -> float:
    """Return the product, where zero times infinity is zero."""
    return factor * value if factor else 0.0
