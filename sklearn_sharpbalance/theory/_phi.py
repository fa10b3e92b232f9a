"""The expectation that both theorems are made of."""

import math
from fractions import Fraction
from numbers import Rational

from sklearn_sharpbalance.theory._checks import check_counts, check_scales
from sklearn_sharpbalance.theory._moments import check_variant, wishart_moment

__all__ = ["largest_eigenvalue", "phi"]


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
        leading order; see :func:`wishart_moment`. On the paper's own grid for parts
        (n = 300, d = 150, k up to 12) the printed one falls to a quarter of the true
        value.

    Returns
    -------
    float
        Correctly rounded: the alternating sum is formed of integers, with the binary
        fractions that ``eta`` and ``rho`` are, and divided once.

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
    i, j = check_counts(i=i, j=j)
    n, d = check_counts(1, n=n, d=d)
    check_scales(eta=eta, rho=rho)
    check_variant(variant)
    total = sum(
        coefficient * wishart_moment(power + j, n=n, d=d, variant=variant)
        for power, coefficient in enumerate(_step_polynomial(i, eta, rho))
    )
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _step_polynomial(i: int, eta: float, rho: float) -> list[Fraction]:
    """Coefficients of (1 - eta x - eta rho x^2)^i."""
    a, b = (Fraction(v if isinstance(v, Rational) else float(v)) for v in (eta, rho))
    scale = a.denominator * b.denominator
    step = (scale, -a.numerator * b.denominator, -a.numerator * b.numerator)
    powers = [1]
    for _ in range(i):
        longer = [0] * (len(powers) + 2)
        for power, value in enumerate(powers):
            for shift, factor in enumerate(step):
                longer[power + shift] += factor * value
        powers = longer
    return [Fraction(value, scale**i) for value in powers]


def largest_eigenvalue(n: int, d: int, variant: str) -> float:
    """Bound of the expected largest eigenvalue of A'A."""
    slack = 0.0 if variant == "printed" else 1 / d
    return (math.sqrt(n / d) + 1) ** 2 + slack
