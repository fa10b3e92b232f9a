"""Sharpness and diversity of linear models: Theorems 1 and 2, and a simulation."""

from sklearn_sharpbalance.theory._moments import phi, wishart_moment
from sklearn_sharpbalance.theory._simulate import SimulationResult, simulate
from sklearn_sharpbalance.theory._theorems import (
    sam_diversity,
    sam_sharpness_bounds,
    subset_diversity,
    subset_sharpness_bound,
)

__all__ = [
    "SimulationResult",
    "phi",
    "sam_diversity",
    "sam_sharpness_bounds",
    "simulate",
    "subset_diversity",
    "subset_sharpness_bound",
    "wishart_moment",
]
