"""Parts of torch without a public name.

All private names of torch that the numerical packages need are here, so that a new
version of torch has to be checked in one place.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

__all__ = [
    "BATCH_NORM",
    "INSTANCE_NORM",
    "WEIGHT_NORM",
    "foreach_abs",
    "foreach_add",
    "foreach_add_",
    "foreach_copy_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_norm",
    "foreach_sub",
    "foreach_sub_",
    "in_place_version",
    "is_compiled",
    "without_vmap_warnings",
]

# Base classes of all batch and instance norms, also of those that users derive.
BATCH_NORM = _BatchNorm
INSTANCE_NORM = _InstanceNorm

# The function behind torch.nn.utils.weight_norm, to recognise its calls.
WEIGHT_NORM = torch._weight_norm


# Operations on lists of tensors: torch's own optimizers use them, because one launch
# for all tensors is much faster than one for each. An underscore at the end of a name
# means in place, as in torch.


def foreach_abs(tensors: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_abs(tensors))


def foreach_norm(tensors: list[Tensor], order: float = 2) -> list[Tensor]:
    return list(torch._foreach_norm(tensors, order))


def foreach_add(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_add(tensors, others))


def foreach_sub(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_sub(tensors, others))


def foreach_mul(tensors: list[Tensor], factors: Any) -> list[Tensor]:
    """Multiply by a list of tensors, by one tensor or by a number."""
    return list(torch._foreach_mul(tensors, factors))


def foreach_add_(tensors: list[Tensor], others: Any) -> None:
    """Add a list of tensors or a number."""
    torch._foreach_add_(tensors, others)


def foreach_sub_(tensors: list[Tensor], others: Any) -> None:
    """Subtract a list of tensors or a number."""
    torch._foreach_sub_(tensors, others)


def foreach_mul_(tensors: list[Tensor], factors: Any) -> None:
    """Multiply by a list of tensors, by one tensor or by a number."""
    torch._foreach_mul_(tensors, factors)


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)  # type: ignore[arg-type]


def in_place_version(tensor: Tensor) -> int:
    """Return a counter that each in-place operation on the tensor increases."""
    return tensor._version


def is_compiled(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` or ``Module.compile`` made this module's call.

    Examples
    --------
    >>> is_compiled(nn.Linear(1, 1))
    False
    """
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


@contextmanager
def without_vmap_warnings() -> Iterator[None]:
    """Do not warn about operations that vmap runs sample by sample.

    This is a setting of the whole process, as a filter of warnings would be.
    """
    enable = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)
