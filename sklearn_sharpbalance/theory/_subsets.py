"""Theorem 2: diversity and sharpness of models that each train on a subset."""

import math
from typing import Any

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    NON_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.theory._checks import check_divides
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
    r"""Return the diversity of Theorem 2, for models trained on one of S subsets.

    Parameters
    ----------
    k, eta, rho, d, sigma, variant
        See :func:`sam_diversity`.
    n : int
        Samples of all subsets together; a multiple of ``n_subsets``.
    n_subsets : int
        Number S of subsets of equal size.
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
    :math:`\phi` with n/S samples. The printed formula is correct; the variants differ
    in the moments only.
    """
    check_numbers(NON_NEGATIVE_INTEGER, k=k)
    check_numbers(NON_NEGATIVE, sigma=sigma, theta_norm=theta_norm)
    k = int(k)
    subset = _subset_arguments(
        eta=eta, rho=rho, n=n, d=d, n_subsets=n_subsets, variant=variant
    )
    phi_2k, phi_k = phi(2 * k, 0, **subset), phi(k, 0, **subset)
    # phi_k^2 <= phi_2k, and both may be infinite.
    variance = math.inf if math.isinf(phi_2k) else phi_2k - phi_k**2
    factor = (n_subsets - 1) / (d * n_subsets)
    between_subsets = scaled(theta_norm**2, scaled(factor, variance))
    return scaled(sigma**2, phi_2k) + between_subsets


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
    r"""Return the upper bound of the sharpness of Theorem 2.

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
    B_t^k` over the matrices :math:`W_s = A_s^\top A_s` of the subsets. A term depends
    on which of its four indices are equal. With :math:`f_j = \phi'(k, j)`,
    :math:`g_j = \phi'(2k, j)`, :math:`r = n/(Sd)`, :math:`r_2 = \phi'(0, 2)` and
    :math:`S_m = S(S-1)\cdots(S-m+1)`, "derived" is

    .. math::

        C ={}& S g_2 + S_2 \big[2 r g_1 + 2 f_2 f_0 + r_2 g_0 + f_1^2
        + (2 r f_1 f_0 - r^2 f_0^2)\big] \\
        &+ S_3 \big[r_2 f_0^2 + r^2 g_0 + 4 r f_0 f_1\big] + S_4\, r^2 f_0^2 .

    The paper prints :math:`2 f_1^2` instead of :math:`f_1^2 + 2 r f_1 f_0 - r^2
    f_0^2`: in the crossing pattern :math:`W_j W_l B_j B_l` the expectation does not
    factorise; asymptotically the two subsets are free, and the freeness formula for
    alternating products applies (its error is of order 1/d). For the six patterns with
    one pair the paper has :math:`\frac32 r_2 f_0^2 + \frac32 r^2 g_0 + 3 r f_0 f_1`;
    there is one pattern for each of the first two terms and four for the third. The
    printed C exceeds the derived one by :math:`S_2 (f_1 - r f_0)^2` and by
    :math:`\frac12 S_3 [r_2 f_0^2 + r^2 g_0 - 2 r f_0 f_1]`.
    """
    check_numbers(NON_NEGATIVE_INTEGER, k=k)
    check_numbers(NON_NEGATIVE, radius=radius, theta_norm=theta_norm)
    k = int(k)
    subset = _subset_arguments(
        eta=eta, rho=rho, n=n, d=d, n_subsets=n_subsets, variant=variant
    )
    c = _gradient_constant(k, n_subsets, subset)
    largest = largest_eigenvalue(n, d, variant)
    slope = scaled(theta_norm, scaled(radius / n_subsets, math.sqrt(c)))
    return radius**2 / 2 * largest + slope


def _gradient_constant(k: int, n_subsets: int, subset: dict[str, Any]) -> float:
    """Return the constant C of Theorem 2, see :func:`subset_sharpness_bound`."""
    try:
        c = _finite_constant(k, n_subsets, subset)
    except OverflowError:
        return math.inf
    return c if math.isfinite(c) else math.inf  # NaN if infinite terms are subtracted


def _finite_constant(k: int, n_subsets: int, subset: dict[str, Any]) -> float:
    f0, f1, f2 = (phi(k, j, **subset) for j in range(3))
    g0, g1, g2 = (phi(2 * k, j, **subset) for j in range(3))
    r, r2 = (phi(0, j, **subset) for j in (1, 2))
    s2, s3, s4 = (math.perm(n_subsets, m) for m in (2, 3, 4))
    if subset["variant"] == "printed":
        crossing = f1**2
        pairs = 1.5 * r2 * f0**2 + 1.5 * r**2 * g0 + 3 * r * f0 * f1
    else:
        crossing = 2 * r * f1 * f0 - r**2 * f0**2
        pairs = r2 * f0**2 + r**2 * g0 + 4 * r * f0 * f1
    double = 2 * r * g1 + 2 * f2 * f0 + r2 * g0 + f1**2 + crossing
    return n_subsets * g2 + s2 * double + s3 * pairs + s4 * r**2 * f0**2


def _subset_arguments(*, eta, rho, n, d, n_subsets, variant) -> dict[str, Any]:
    """Return the arguments of phi for one subset of the data."""
    check_numbers(POSITIVE_INTEGER, n=n, d=d, n_subsets=n_subsets)
    n, d, n_subsets = int(n), int(d), int(n_subsets)
    check_divides(n_subsets, n)
    return {"eta": eta, "rho": rho, "n": n // n_subsets, "d": d, "variant": variant}
