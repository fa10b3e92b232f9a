"""Theorems 1 and 2: diversity and sharpness of linear models trained with SAM.

In Theorem 1 all models train on all data, in Theorem 2 each on a subset.
"""

import math

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    NON_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory._moments import phi


def sam_diversity(k, *, eta, rho, n, d, sigma=1.0, variant="derived"):
    r"""Return the diversity of Theorem 1, :math:`\phi(2k, 0)\,\sigma^2`.

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
        Variance of the predictions over the starting weights, averaged over data and
        test points; infinite beyond the range of floats.

    Examples
    --------
    >>> from sklearn_sharpbalance.theory import sam_diversity
    >>> sam_diversity(3, eta=0.0, rho=0.1, n=30, d=10, sigma=2.0)
    4.0
    """
    check_numbers(NON_NEGATIVE_INTEGER, k=k)
    check_numbers(NON_NEGATIVE, sigma=sigma)
    k = int(k)
    value = phi(2 * k, 0, eta=eta, rho=rho, n=n, d=d, variant=variant)
    return _scaled(sigma**2, value)


def sam_sharpness_bounds(
    k, *, eta, rho, n, d, radius, theta_norm=1.0, variant="derived"
):
    r"""Return the bounds of the sharpness :math:`\kappa_k` of Theorem 1.

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
        A negative lower bound is trivial. If moments are beyond the range of floats,
        the lower bound is -inf, and the upper bound may be inf.

    Notes
    -----
    .. math::

        \frac{\rho_0^2}{2} \Big(\sqrt{n/d} - 1\Big)^2
        + \rho_0 \sqrt{\phi(2k,2)}\,\|\theta^*\| - G \;\le\; \kappa_k \;\le\;
        \frac{\rho_0^2}{2} \Big(\sqrt{n/d} + 1\Big)^2
        + \rho_0 \sqrt{\phi(2k,2)}\,\|\theta^*\|

    "derived" differs from the printed theorem in:

    * The Jensen gap. With :math:`Z = \theta^{*\top} B^{2k} (A^\top A)^2 \theta^*` the
      paper has :math:`\mathrm{Var}\,Z = (\phi(4k,4) - \phi(2k,2)^2)\,\|\theta^*\|^2`
      and omits :math:`\rho_0`. The variance is of fourth order in the weights, and
      this expression is only a bound (Cauchy-Schwarz), which gives
      :math:`G = \rho_0 \|\theta^*\| (\phi(4k,4) - \phi(2k,2)^2) / (2\phi(2k,2)^{3/2})`
      instead of :math:`(\phi(4k,4) - \phi(2k,2)^2) / (2\phi(2k,2)^{3/2}\|\theta^*\|)`.
    * The largest eigenvalue. :math:`E\,\sigma_{\max} \le \sqrt{n/d} + 1` bounds its
      square only with the variance added, which is at most 1/d.
    * The smallest eigenvalue, which is 0, not :math:`(\sqrt{n/d} - 1)^2`, if n < d.
    * The moments, see :func:`phi`.
    """
    check_numbers(NON_NEGATIVE_INTEGER, k=k)
    check_numbers(NON_NEGATIVE, radius=radius, theta_norm=theta_norm)
    k = int(k)
    if variant == "printed" and theta_norm == 0:
        raise InvalidInputError(
            "theta_norm must be > 0 with variant='printed', which divides by it; got "
            f"{theta_norm!r}. Use variant='derived'."
        )
    model = {"eta": eta, "rho": rho, "n": n, "d": d, "variant": variant}
    second, fourth = phi(2 * k, 2, **model), phi(4 * k, 4, **model)
    slope = _scaled(theta_norm, _scaled(radius, math.sqrt(second)))
    excess = _excess(second, fourth)
    if variant == "printed":
        gap = excess / theta_norm
        smallest = (math.sqrt(n / d) - 1) ** 2
    else:
        gap = _scaled(theta_norm, _scaled(radius, excess))
        smallest = max(math.sqrt(n / d) - 1, 0) ** 2
    half_square = radius**2 / 2
    upper = half_square * _largest_eigenvalue(n, d, variant) + slope
    if math.isinf(gap):  # the gap grows faster than the slope
        return -math.inf, upper
    return half_square * smallest + slope - gap, upper


def _excess(second, fourth):
    """Return the gap of Jensen's inequality, (fourth - second^2) / (2 second^1.5)."""
    if math.isinf(fourth):
        return math.inf
    try:
        return (fourth - second**2) / (2 * second**1.5)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def subset_diversity(
    k, *, eta, rho, n, d, n_subsets, sigma=1.0, theta_norm=1.0, variant="derived"
):
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
    size = subset_size(n, n_subsets)
    subset = {"eta": eta, "rho": rho, "n": size, "d": d, "variant": variant}
    phi_2k, phi_k = phi(2 * k, 0, **subset), phi(k, 0, **subset)
    # phi_k^2 <= phi_2k, and both may be infinite.
    variance = math.inf if math.isinf(phi_2k) else phi_2k - phi_k**2
    factor = (n_subsets - 1) / (d * n_subsets)
    between_subsets = _scaled(theta_norm**2, _scaled(factor, variance))
    return _scaled(sigma**2, phi_2k) + between_subsets


def subset_sharpness_bound(
    k, *, eta, rho, n, d, n_subsets, radius, theta_norm=1.0, variant="derived"
):
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
    size = subset_size(n, n_subsets)
    subset = {"eta": eta, "rho": rho, "n": size, "d": d, "variant": variant}
    c = _gradient_constant(k, n_subsets, subset)
    largest = _largest_eigenvalue(n, d, variant)
    slope = _scaled(theta_norm, _scaled(radius / n_subsets, math.sqrt(c)))
    return radius**2 / 2 * largest + slope


def _gradient_constant(k, n_subsets, subset):
    """Return the constant C of Theorem 2, see :func:`subset_sharpness_bound`."""
    f0, f1, f2 = (phi(k, j, **subset) for j in range(3))
    g0, g1, g2 = (phi(2 * k, j, **subset) for j in range(3))
    r, r2 = (phi(0, j, **subset) for j in (1, 2))
    s2, s3, s4 = (math.perm(n_subsets, m) for m in (2, 3, 4))
    try:
        if subset["variant"] == "printed":
            crossing = f1**2
            pairs = 1.5 * r2 * f0**2 + 1.5 * r**2 * g0 + 3 * r * f0 * f1
        else:
            crossing = 2 * r * f1 * f0 - r**2 * f0**2
            pairs = r2 * f0**2 + r**2 * g0 + 4 * r * f0 * f1
        double = 2 * r * g1 + 2 * f2 * f0 + r2 * g0 + f1**2 + crossing
        c = n_subsets * g2 + s2 * double + s3 * pairs + s4 * r**2 * f0**2
    except OverflowError:
        return math.inf
    return c if math.isfinite(c) else math.inf  # NaN if infinite terms are subtracted


def subset_size(n, n_subsets):
    """Return the number of samples of each subset; raise if they differ in size."""
    check_numbers(POSITIVE_INTEGER, n=n, n_subsets=n_subsets)
    if n % n_subsets:
        raise InvalidInputError(f"n_subsets must divide n={n}, got {n_subsets}.")
    return int(n) // int(n_subsets)


def _largest_eigenvalue(n, d, variant):
    """Return the bound of the expected largest eigenvalue of A'A."""
    slack = 0.0 if variant == "printed" else 1 / d
    return (math.sqrt(n / d) + 1) ** 2 + slack


def _scaled(factor, value):
    """Return the product, where zero times infinity is zero."""
    return factor * value if factor else 0.0
