"""Flatness of a fitted net or ensemble on given samples.

Every function takes an initialised skorch net, or a fitted ensemble whose members are
measured separately, and does not change it. Larger always means sharper.
"""

from sklearn_sharpbalance.metrics.flatness.average_case import (
    average_case_sharpness,
    sam_sharpness,
)
from sklearn_sharpbalance.metrics.flatness.fisher import (
    fisher_rao_norm,
    mean_fisher_trace,
    mean_input_curvature,
)
from sklearn_sharpbalance.metrics.flatness.hessian import (
    hessian_top_eigenvalue,
    hessian_trace,
)
from sklearn_sharpbalance.metrics.flatness.relative import relative_flatness
from sklearn_sharpbalance.metrics.flatness.worst_case import adaptive_sharpness

__all__ = [
    "adaptive_sharpness",
    "average_case_sharpness",
    "fisher_rao_norm",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "mean_fisher_trace",
    "mean_input_curvature",
    "relative_flatness",
    "sam_sharpness",
]
