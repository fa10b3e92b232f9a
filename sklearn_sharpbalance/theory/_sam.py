"""Theorem 1: diversity and sharpness of linear models trained with SAM."""

import math
from typing import Any

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    NON_NEGATIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory._phi import largest_eigenvalue, phi, scaled

__all__ = ["sam_diversity", "sam_sharpness_bounds"]


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
    return scaled(sigma**2, value)


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
    common: dict[str, Any] = {
        "eta": eta,
        "rho": rho,
        "n": n,
        "d": d,
        "variant": variant,
    }
    second, fourth = phi(2 * k, 2, **common), phi(4 * k, 4, **common)
    slope = scaled(theta_norm, scaled(radius, math.sqrt(second)))
    excess = _excess(second, fourth)
    if variant == "printed":
        gap = excess / theta_norm
        smallest = (math.sqrt(n / d) - 1) ** 2
    else:
        gap = scaled(theta_norm, scaled(radius, excess))
        smallest = max(math.sqrt(n / d) - 1, 0) ** 2
    half_square = radius**2 / 2
    upper = half_square * largest_eigenvalue(n, d, variant) + slope
    if math.isinf(gap):  # the gap grows faster than the slope
        return -math.inf, upper
    return half_square * smallest + slope - gap, upper


def _excess(second: float, fourth: float) -> float:
    """Return the gap of Jensen's inequality, (fourth - second^2) / (2 second^1.5)."""
    if math.isinf(fourth):
        return math.inf
    try:
        return (fourth - second**2) / (2 * second**1.5)
    except (OverflowError, ZeroDivisionError):
        return math.inf
