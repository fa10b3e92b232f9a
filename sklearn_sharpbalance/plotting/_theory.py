"""What Theorems 1 and 2 say at several settings."""

from typing import Any

import numpy as np

from sklearn_sharpbalance.theory import (
    sam_diversity,
    sam_sharpness_bounds,
    subset_diversity,
    subset_sharpness_bound,
)
from sklearn_sharpbalance.theory._checks import check_grid


def flat_grid(k: Any, eta: Any, rho: Any) -> list[np.ndarray]:
    """Steps, step sizes and perturbations of all settings, each (n_points,)."""
    return [values.ravel() for values in check_grid(k, eta, rho)]


def theory_curves(
    k: Any,
    eta: Any,
    rho: Any,
    radius: float,
    n: int,
    d: int,
    n_subsets: int,
    sigma: float,
    theta_norm: float,
    variant: str,
) -> dict[str, Any]:
    """Diversity and bounds of sharpness for each setting, as arrays (n_points,)."""
    rows = []
    for steps, step, perturbation in zip(*flat_grid(k, eta, rho)):
        model: dict[str, Any] = {"eta": float(step), "rho": float(perturbation)}
        model |= {"n": n, "d": d, "variant": variant}
        reach: dict[str, Any] = {"radius": radius, "theta_norm": theta_norm}
        if n_subsets == 1:
            diversity = sam_diversity(int(steps), sigma=sigma, **model)
            bounds = sam_sharpness_bounds(int(steps), **reach, **model)
        else:
            model["n_subsets"] = n_subsets
            diversity = subset_diversity(
                int(steps), sigma=sigma, theta_norm=theta_norm, **model
            )
            upper = subset_sharpness_bound(int(steps), **reach, **model)
            bounds = (np.nan, upper)
        rows.append((diversity, *bounds))
    diversity, lower, upper = np.array(rows).T
    known = None if np.isnan(lower).all() else lower
    return {"diversity": diversity, "lower": known, "upper": upper}
