"""Gradient norms of single samples, and products with the Hessian."""

from sklearn_sharpbalance.autodiff.hessian import HessianOperator
from sklearn_sharpbalance.autodiff.per_sample import per_sample_squared_norms
from sklearn_sharpbalance.autodiff.rows import (
    Rows,
    in_chunks,
    is_out_of_memory,
    map_chunks,
    map_tensors,
)
from sklearn_sharpbalance.autodiff.state import (
    device_of,
    evaluation_mode,
    sample_losses,
    trainable_parameters,
)

__all__ = [
    "HessianOperator",
    "Rows",
    "device_of",
    "evaluation_mode",
    "in_chunks",
    "is_out_of_memory",
    "map_chunks",
    "map_tensors",
    "per_sample_squared_norms",
    "sample_losses",
    "trainable_parameters",
]
