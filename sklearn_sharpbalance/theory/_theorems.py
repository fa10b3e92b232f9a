"""Theorems 1 and 2: diversity and sharpness of linear models trained with SAM."""

import math
from fractions import Fraction

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory._moments import check_variant, wishart_moment

__all__ = [
    "phi",
    "sam_diversity",
    "sam_sharpness_bounds",
    "subset_diversity",
    "subset_sharpness_bound",
]


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
        leading order; see :func:`wishart_moment`. On the paper's own grid (n = 300,
        d = 150, k up to 12) the printed one is too small by up to a half.

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
    if i < 0 or j < 0:
        raise InvalidInputError(f"phi needs powers i, j >= 0, got i={i}, j={j}.")
    _check_sizes(n, d)
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
    eta, rho = Fraction(eta), Fraction(rho)
    scale = eta.denominator * rho.denominator
    step = (scale, -eta.numerator * rho.denominator, -eta.numerator * rho.numerator)
    powers = [1]
    for _ in range(i):
        longer = [0] * (len(powers) + 2)
        for power, value in enumerate(powers):
            for shift, factor in enumerate(step):
                longer[power + shift] += factor * value
        powers = longer
    return [Fraction(value, scale**i) for value in powers]


def sam_diversity(
    k: int,
    *,
    eta: float,
    rho: float,
    n: int,
    d: int,
    sigma: float = 1.0,
    variant: str = "derived",
) -> float:
    r"""Theorem 1, diversity: :math:`\phi(2k, 0)\,\sigma^2`.

    Parameters
    ----------
    k : int
        Steps of SAM.
    eta, rho, n, d, variant
        See :func:`phi`.
    sigma : float, default=1.0
        Standard deviation of each entry of the starting weights.

    Returns
    -------
    float
        Variance of the prediction over starts, mean over data and test points.

    Examples
    --------
    >>> from sklearn_sharpbalance.theory import sam_diversity
    >>> sam_diversity(3, eta=0.0, rho=0.1, n=30, d=10, sigma=2.0)
    4.0
    """
    _check_scales(sigma=sigma)
    return phi(2 * k, 0, eta=eta, rho=rho, n=n, d=d, variant=variant) * sigma**2


def sam_sharpness_bounds(
    k: int,
    *,
    eta: float,
    rho: float,
    n: int,
    d: int,
    radius: float,
    theta_norm: float = 1.0,
    variant: str = "derived",
) -> tuple[float, float]:
    r"""Theorem 1, bounds of the sharpness :math:`\kappa_k`.

    Parameters
    ----------
    k, eta, rho, n, d, variant
        See :func:`sam_diversity`.
    radius : float
        Radius :math:`\rho_0` within which sharpness is measured.
    theta_norm : float, default=1.0
        Length of the teacher's weights :math:`\theta^*`.

    Returns
    -------
    lower, upper : float
        The lower bound may be negative, and then says nothing.

    Notes
    -----
    .. math::

        \frac{\rho_0^2}{2} \Big(\sqrt{n/d} - 1\Big)^2
        + \rho_0 \sqrt{\phi(2k,2)}\,\|\theta^*\| - G \;\le\; \kappa_k \;\le\;
        \frac{\rho_0^2}{2} \Big(\sqrt{n/d} + 1\Big)^2
        + \rho_0 \sqrt{\phi(2k,2)}\,\|\theta^*\|

    Where "derived" departs from the printed theorem:

    * The Jensen gap. With :math:`Z = \theta^{*\top} B^{2k} (A^\top A)^2 \theta^*` the
      paper has :math:`\mathrm{Var}\,Z = (\phi(4k,4) - \phi(2k,2)^2)\,\|\theta^*\|^2`
      and drops :math:`\rho_0`. The variance is of fourth order in the weights, and
      only bounded by that expression (Cauchy-Schwarz), which gives
      :math:`G = \rho_0 \|\theta^*\| (\phi(4k,4) - \phi(2k,2)^2) / (2\phi(2k,2)^{3/2})`
      in place of :math:`(\phi(4k,4) - \phi(2k,2)^2) / (2\phi(2k,2)^{3/2}\|\theta^*\|)`.
    * The largest eigenvalue. :math:`E\,\sigma_{\max} \le \sqrt{n/d} + 1` bounds its
      square only with the variance added, which is at most 1/d.
    * The smallest one is 0, not :math:`(\sqrt{n/d} - 1)^2`, if n < d.
    * The moments, see :func:`phi`.
    """
    _check_scales(radius=radius, theta_norm=theta_norm)
    common = {"eta": eta, "rho": rho, "n": n, "d": d, "variant": variant}
    second, fourth = phi(2 * k, 2, **common), phi(4 * k, 4, **common)
    slope = radius * math.sqrt(second) * theta_norm
    excess = (fourth - second**2) / (2 * second**1.5)
    if variant == "printed":
        gap = excess / theta_norm
        smallest = (math.sqrt(n / d) - 1) ** 2
    else:
        gap = excess * radius * theta_norm
        smallest = max(math.sqrt(n / d) - 1, 0) ** 2
    half_square = radius**2 / 2
    upper = half_square * _largest_eigenvalue(n, d, variant) + slope
    return half_square * smallest + slope - gap, upper


def subset_diversity(
    k: int,
    *,
    eta: float,
    rho: float,
    n: int,
    d: int,
    n_subsets: int,
    sigma: float = 1.0,
    theta_norm: float = 1.0,
    variant: str = "derived",
) -> float:
    r"""Theorem 2, diversity of models trained on one of S random parts of the data.

    Parameters
    ----------
    k, eta, rho, d, sigma, variant
        See :func:`sam_diversity`.
    n : int
        Samples in all; a multiple of ``n_subsets``.
    n_subsets : int
        Number of parts S.
    theta_norm : float, default=1.0
        Length of the teacher's weights.

    Returns
    -------
    float

    Notes
    -----
    :math:`\phi'(2k,0)\,\sigma^2 + \frac{S-1}{dS}
    (\phi'(2k,0) - \phi'(k,0)^2)\,\|\theta^*\|^2`, where :math:`\phi'` is
    :math:`\phi` with n/S samples. The printed formula holds as it stands; the variants
    differ in the moments only.
    """
    _check_scales(sigma=sigma, theta_norm=theta_norm)
    common = _part(eta, rho, n, d, n_subsets, variant)
    twice, once = phi(2 * k, 0, **common), phi(k, 0, **common)
    share = (n_subsets - 1) / (d * n_subsets)
    return twice * sigma**2 + share * (twice - once**2) * theta_norm**2


def subset_sharpness_bound(
    k: int,
    *,
    eta: float,
    rho: float,
    n: int,
    d: int,
    n_subsets: int,
    radius: float,
    theta_norm: float = 1.0,
    variant: str = "derived",
) -> float:
    r"""Theorem 2, upper bound of the sharpness of models trained on parts.

    Parameters
    ----------
    k, eta, rho, n, d, n_subsets, theta_norm, variant
        See :func:`subset_diversity`.
    radius : float
        Radius :math:`\rho_0` within which sharpness is measured.

    Returns
    -------
    float

    Notes
    -----
    :math:`\frac{\rho_0^2}{2} (\sqrt{n/d} + 1)^2 + \frac{\rho_0}{S} \sqrt C
    \|\theta^*\|` with :math:`C = \frac1d E\,\mathrm{tr} \sum_{j,l,s,t} W_j W_l B_s^k
    B_t^k` over the parts' matrices :math:`W_s = A_s^\top A_s`. Which of the four
    indices coincide decides each term. With :math:`f_j = \phi'(k, j)`,
    :math:`g_j = \phi'(2k, j)`, :math:`r = n/(Sd)`, :math:`r_2 = \phi'(0, 2)` and
    :math:`S_m = S(S-1)\cdots(S-m+1)`, "derived" is

    .. math::

        C ={}& S g_2 + S_2 \big[2 r g_1 + 2 f_2 f_0 + r_2 g_0 + f_1^2
        + (2 r f_1 f_0 - r^2 f_0^2)\big] \\
        &+ S_3 \big[r_2 f_0^2 + r^2 g_0 + 4 r f_0 f_1\big] + S_4\, r^2 f_0^2 .

    The paper prints :math:`2 f_1^2` where this has :math:`f_1^2 + 2 r f_1 f_0 - r^2
    f_0^2`: in the crossing pattern :math:`W_j W_l B_j B_l` the two parts do not
    factorise; asymptotically they are free, and the freeness formula for alternating
    products applies (its error is of order 1/d). Of the six patterns with one pair the
    paper counts :math:`\frac32 r_2 f_0^2 + \frac32 r^2 g_0 + 3 r f_0 f_1`; there is one
    each of the first two kinds and four of the third. The printed C exceeds the
    derived one by :math:`S_2 (f_1 - r f_0)^2` and by :math:`\frac12 S_3 [r_2 f_0^2 +
    r^2 g_0 - 2 r f_0 f_1]`.
    """
    _check_scales(radius=radius, theta_norm=theta_norm)
    common = _part(eta, rho, n, d, n_subsets, variant)
    c = _gradient_constant(k, n_subsets, common)
    largest = _largest_eigenvalue(n, d, variant)
    slope = radius / n_subsets * math.sqrt(c) * theta_norm
    return radius**2 / 2 * largest + slope


def _gradient_constant(k: int, parts: int, common: dict) -> float:
    """The constant C of Theorem 2, see :func:`subset_sharpness_bound`."""
    f0, f1, f2 = (phi(k, j, **common) for j in range(3))
    g0, g1, g2 = (phi(2 * k, j, **common) for j in range(3))
    r, r2 = (phi(0, j, **common) for j in (1, 2))
    s2, s3, s4 = (math.perm(parts, m) for m in (2, 3, 4))
    if common["variant"] == "printed":
        crossing = f1**2
        pairs = 1.5 * r2 * f0**2 + 1.5 * r**2 * g0 + 3 * r * f0 * f1
    else:
        crossing = 2 * r * f1 * f0 - r**2 * f0**2
        pairs = r2 * f0**2 + r**2 * g0 + 4 * r * f0 * f1
    double = 2 * r * g1 + 2 * f2 * f0 + r2 * g0 + f1**2 + crossing
    return parts * g2 + s2 * double + s3 * pairs + s4 * r**2 * f0**2


def _largest_eigenvalue(n: int, d: int, variant: str) -> float:
    """Bound of the expected largest eigenvalue of A'A."""
    slack = 0.0 if variant == "printed" else 1 / d
    return (math.sqrt(n / d) + 1) ** 2 + slack


def _part(eta, rho, n: int, d: int, n_subsets: int, variant: str) -> dict:
    """Arguments of phi for one part of the data."""
    _check_sizes(n, d)
    if n_subsets < 1 or n % n_subsets:
        raise InvalidInputError(
            f"n_subsets must be at least 1 and divide n={n}, got {n_subsets}."
        )
    return {"eta": eta, "rho": rho, "n": n // n_subsets, "d": d, "variant": variant}


def _check_sizes(n: int, d: int) -> None:
    if n < 1 or d < 1:
        raise InvalidInputError(f"n and d must be at least 1, got n={n}, d={d}.")


def _check_scales(**scales: float) -> None:
    for name, value in scales.items():
        if not value >= 0 or math.isinf(value):
            raise InvalidInputError(f"{name} must be finite and >= 0, got {value}.")
