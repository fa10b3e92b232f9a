"""Vectors that are spread over lists of tensors: norm, inner product, scaling.

A list stands for one vector or, when ``stacked``, for one vector per member: every
tensor then has a leading axis of ``M`` members. Nothing here waits for the device,
except :func:`all_finite`.
"""

from functools import reduce

import torch
from torch import Tensor

__all__ = ["all_finite", "joint_dot", "joint_norm", "scaled", "widened"]

HALF = (torch.float16, torch.bfloat16)


def widened(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors, those of half precision as float32.

    ``rho / ||g||`` overflows float16 long before the perturbation does.
    """
    return [t.float() if t.dtype in HALF else t for t in tensors]


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1)  # (M, size of a member)


def _gathered(parts: list[Tensor]) -> Tensor:
    """Partial results of several devices and dtypes as one tensor (P,) or (P, M)."""
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.stack([part.to(parts[0].device, dtype) for part in parts])


def joint_norm(lists: list[list[Tensor]], stacked: bool) -> Tensor:
    """Euclidean norm of the vector that all lists together make up.

    Parameters
    ----------
    lists : sequence of lists of Tensor
        Each list of one device and dtype; at least one tensor in all.
    stacked : bool
        Whether the tensors have a leading member axis.

    Returns
    -------
    Tensor of shape () or, if ``stacked``, (M,)
    """
    parts: list[Tensor] = []
    for tensors in lists:
        if stacked:
            parts += [torch.linalg.vector_norm(_rows(t), dim=1) for t in tensors]
        else:
            parts += torch._foreach_norm(tensors)
    return torch.linalg.vector_norm(_gathered(parts), dim=0)


def joint_dot(
    left: list[list[Tensor]], right: list[list[Tensor]], stacked: bool
) -> Tensor:
    """Inner product of two vectors, of shape () or, if ``stacked``, (M,)."""
    parts = []
    for a, b in zip(left, right):
        products = torch._foreach_mul(a, b)
        # One sum over all, as the launch of one per tensor costs more than the copy.
        if stacked:
            parts.append(torch.cat([_rows(p) for p in products], dim=1).sum(1))
        else:
            parts.append(torch.cat([p.flatten() for p in products]).sum())
    return _gathered(parts).sum(0)


def scaled(tensors: list[Tensor], factor: Tensor | float) -> list[Tensor]:
    """New tensors ``factor * t``; a factor of shape (M,) has one value per member."""
    if isinstance(factor, Tensor):
        factor = factor.to(tensors[0].device)
        if factor.ndim == 1:
            views = [factor.view(-1, *[1] * (t.ndim - 1)).to(t.dtype) for t in tensors]
            return list(torch._foreach_mul(tensors, views))
        return list(torch._foreach_mul(tensors, factor))
    return list(torch._foreach_mul(tensors, factor))


def all_finite(lists: list[list[Tensor]]) -> bool:
    """Whether no tensor holds an infinity or a NaN. Waits for the device."""
    filled = [[tensor for tensor in tensors if tensor.numel()] for tensors in lists]
    parts = [n for t in filled if t for n in torch._foreach_norm(t, float("inf"))]
    return not parts or bool(torch.isfinite(_gathered(parts)).all())
