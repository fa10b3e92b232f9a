"""Moments of Wishart matrices as exact fractions, and the expectation phi of them."""

import math
from fractions import Fraction
from functools import lru_cache
from numbers import Rational

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    NON_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

VARIANTS = ("derived", "printed")
# Highest order of a moment: the exact integers of phi then cost about a second.
MAX_ORDER = 1000


def wishart_moment(m, *, n, d, variant="derived"):
    r"""Moment :math:`\frac1d E\,\mathrm{tr}\,(A^\top A)^m` of an n x d Gaussian matrix.

    Parameters
    ----------
    m : int
        Order, from 0 to 1000.
    n, d : int
        Rows and columns of A, whose entries are N(0, 1/d).
    variant : {"derived", "printed"}, default="derived"
        "derived" is exact for finite n and d. "printed" is the leading order that the
        paper takes from the Marchenko-Pastur law, :math:`\sum_{l=1}^m (n/d)^l N(m, l)`
        with Narayana numbers :math:`N(m, l) = \frac1l \binom{m-1}{l-1} \binom{m}{l-1}`.
        Its relative error is of order :math:`m^{3/2}/d`.

    Returns
    -------
    Fraction

    Notes
    -----
    With :math:`R_m = E\,\mathrm{tr}\,(G^\top G)^m` for standard normal entries, and
    :math:`C_m` the same for an (n-1) x (d-1) matrix of complex entries [1]_,

    .. math::

        R_m - 2(n+d-1) R_{m-1} &+ \big((n-d)^2 - (2m-3)^2\big) R_{m-2} = \\
        C_m - (2(n+d)-1)\, C_{m-1} &+ \big((n-d)^2 - (m-1)^2\big) C_{m-2} , \\
        (m+1)\, C_m = (2m-1)(n+d-2)\, C_{m-1} &- (m-2)
        \big((n-d)^2 - (m-1)^2\big) C_{m-2} .

    The first relation has the same form as that for Gaussian ensembles [2]_. It was
    derived from the sum over partitions [3]_ and is tested against it: for each m both
    are polynomials of degree m in n and in d.

    References
    ----------
    .. [1] Haagerup and Thorbjornsen. "Random matrices with complex Gaussian entries."
       Expositiones Mathematicae 21, 2003.
    .. [2] Ledoux. "A recursion formula for the moments of the Gaussian orthogonal
       ensemble." Annales de l'IHP, Probabilites et Statistiques 45, 2009.
    .. [3] Hanlon, Stanley and Stembridge. "Some combinatorial aspects of the spectra of
       normally distributed random matrices." Contemporary Mathematics 138, 1992.

    Examples
    --------
    >>> from sklearn_sharpbalance.theory import wishart_moment
    >>> wishart_moment(2, n=6, d=3)  # r (1 + r + 1/d) with r = n/d
    Fraction(20, 3)
    """
    check_numbers(NON_NEGATIVE_INTEGER, m=m)
    m, n, d = int(m), *_checked_sizes(n, d, variant)
    _check_order(m)
    return Fraction(_scaled_moments(m, n, d, variant)[m], d ** (m + 1))


def _checked_sizes(n: int, d: int, variant: str) -> tuple[int, int]:
    check_choice("variant", variant, VARIANTS)
    check_numbers(POSITIVE_INTEGER, n=n, d=d)
    return int(n), int(d)


def _check_order(order: int) -> None:
    if order > MAX_ORDER:
        raise InvalidInputError(
            f"This needs moments of order {order}, which is above {MAX_ORDER}: their "
            "exact integers would take too long. Use fewer steps k, or simulate, whose "
            "time does not depend on k."
        )


@lru_cache(maxsize=64)
def _scaled_moments(top: int, n: int, d: int, variant: str) -> tuple[int, ...]:
    """Return the moments m = 0 ... ``top`` times d^(m + 1), which are integers."""
    if variant == "printed":
        return tuple(d * moment for moment in _leading_orders(top, n, d))
    return tuple(_trace_moments(top, n, d))


def _leading_orders(top: int, n: int, d: int) -> list[int]:
    """Return the sums over k of n^k d^(m-k) N(m, k), by a recursion in m."""
    sums = [1, n]
    for m in range(2, top + 1):
        value = (2 * m - 1) * (n + d) * sums[-1] - (m - 2) * (n - d) ** 2 * sums[-2]
        sums.append(value // (m + 1))
    return sums[: top + 1]


def _trace_moments(top: int, n: int, d: int) -> list[int]:
    """Return E tr (G'G)^m by the recursion in :func:`wishart_moment`."""
    gap = (n - d) ** 2
    R = [d, n * d]
    C = [d - 1, (n - 1) * (d - 1)]
    for m in range(2, top + 1):
        c_term = (gap - (m - 1) ** 2) * C[m - 2]
        r_term = (gap - (2 * m - 3) ** 2) * R[m - 2]
        C.append(((2 * m - 1) * (n + d - 2) * C[m - 1] - (m - 2) * c_term) // (m + 1))
        right = C[m] - (2 * (n + d) - 1) * C[m - 1] + c_term
        R.append(right + 2 * (n + d - 1) * R[m - 1] - r_term)
    return R[: top + 1]


def phi(i, j, *, eta, rho, n, d, variant="derived"):
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
        Moments of the Wishart matrix: exact, or the paper's leading order; see
        :func:`wishart_moment`.

    Returns
    -------
    float
        Correctly rounded: the alternating sum is computed in integers and divided once.
        Infinite beyond the range of floats. ``2 * i + j`` must be at most 1000, since
        the cost grows with the cube of the powers.

    Notes
    -----
    .. math::

        \phi(i, j) = \sum_{k_1+k_2+k_3=i} \frac{i!}{k_1!k_2!k_3!}
        (-\eta)^{k_2+k_3} \rho^{k_3}\, M_{k_2+2k_3+j}

    with :math:`M_m` the moments and :math:`M_0 = 1`.

    Examples
    --------
    >>> from sklearn_sharpbalance.theory import phi
    >>> phi(1, 0, eta=0.5, rho=0.0, n=20, d=10)  # 1 - eta n/d
    0.0
    """
    check_numbers(NON_NEGATIVE_INTEGER, i=i, j=j)
    check_numbers(NON_NEGATIVE, eta=eta, rho=rho)
    i, j, n, d = int(i), int(j), *_checked_sizes(n, d, variant)
    _check_order(2 * i + j)
    scale, coefficients = _step_polynomial(i, eta, rho)
    moments = _scaled_moments(2 * i + j, n, d, variant)[j:]
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
