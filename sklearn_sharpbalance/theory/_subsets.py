"""Theorem 2: the same for models that each train on one part of the data."""

import math
from typing import Any

from sklearn_sharpbalance.theory._checks import (
    check_counts,
    check_divides,
    check_scales,
)
from sklearn_sharpbalance.theory._phi import largest_eigenvalue, phi, scaled

__all__ = ["subset_diversity", "subset_sharpness_bound"]


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
        Infinite beyond the range of floats.

    Notes
    -----
    :math:`\phi'(2k,0)\,\sigma^2 + \frac{S-1}{dS}
    (\phi'(2k,0) - \phi'(k,0)^2)\,\|\theta^*\|^2`, where :math:`\phi'` is
    :math:`\phi` with n/S samples. The printed formula holds as it stands; the variants
    differ in the moments only.
    """
    (k,) = check_counts(k=k)
    check_scales(sigma=sigma, theta_norm=theta_norm)
    common = _part(eta, rho, n, d, n_subsets, variant)
    twice, once = phi(2 * k, 0, **common), phi(k, 0, **common)
    share = (n_subsets - 1) / (d * n_subsets)
    # The square of a mean is below the mean of squares, and both may be infinite.
    between = twice - once**2 if twice < math.inf else math.inf
    of_parts = scaled(theta_norm**2, scaled(share, between))
    return scaled(sigma**2, twice) + of_parts


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
        Infinite beyond the range of floats.

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
    (k,) = check_counts(k=k)
    check_scales(radius=radius, theta_norm=theta_norm)
    common = _part(eta, rho, n, d, n_subsets, variant)
    c = _gradient_constant(k, n_subsets, common)
    largest = largest_eigenvalue(n, d, variant)
    slope = scaled(theta_norm, scaled(radius / n_subsets, math.sqrt(c)))
    return radius**2 / 2 * largest + slope


def _gradient_constant(k: int, parts: int, common: dict[str, Any]) -> float:
    """The constant C of Theorem 2, see :func:`subset_sharpness_bound`."""
    try:
        c = _constant(k, parts, common)
    except OverflowError:
        return math.inf
    return c if math.isfinite(c) else math.inf  # differences of infinite terms too


def _constant(k: int, parts: int, common: dict[str, Any]) -> float:
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


def _part(eta, rho, n: int, d: int, n_subsets: int, variant: str) -> dict[str, Any]:
    """Arguments of phi for one part of the data."""
    n, d, n_subsets = check_counts(1, n=n, d=d, n_subsets=n_subsets)
    check_divides(n_subsets, n)
    return {"eta": eta, "rho": rho, "n": n // n_subsets, "d": d, "variant": variant}
