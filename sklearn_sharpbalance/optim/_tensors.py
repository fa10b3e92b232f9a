"""Norm, inner product and scaling of vectors that are stored as lists of tensors.

A list is one vector or, if ``stacked``, one vector per member: every tensor then has a
leading axis of ``M`` members. Only :func:`all_finite` waits for the device.
"""

from functools import reduce

import torch
from torch import Tensor

from sklearn_sharpbalance.runtime.torch_internals import foreach_mul, foreach_norm

__all__ = ["all_finite", "choose", "joint_dot", "joint_norm", "scaled", "widened"]

HALF = (torch.float16, torch.bfloat16)


def widened(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors, with half precision converted to float32.

    ``rho / ||g||`` overflows float16 long before the perturbation does.
    """
    return [t.float() if t.dtype in HALF else t for t in tensors]


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1)  # (M, size of a member)


def _gathered(parts: list[Tensor]) -> Tensor:
    """Stack partial results of several devices and dtypes, as (P,) or (P, M)."""
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.stack([part.to(parts[0].device, dtype) for part in parts])


def joint_norm(lists: list[list[Tensor]], stacked: bool) -> Tensor:
    """Return the Euclidean norm of the vector that consists of all lists.

    Parameters
    ----------
    lists : sequence of lists of Tensor
        The tensors of a list share a device and dtype. There is at least one tensor.
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
            parts += foreach_norm(tensors)
    if len(parts) == 1:
        return parts[0]
    return torch.linalg.vector_norm(_gathered(parts), dim=0)


def joint_dot(
    left: list[list[Tensor]], right: list[list[Tensor]], stacked: bool
) -> Tensor:
    """Return the inner product of two vectors, of shape () or, if ``stacked``, (M,)."""
    parts = []
    for a, b in zip(left, right):
        products = foreach_mul(a, b)
        # One sum over a copy of all tensors is faster than one launch per tensor.
        if stacked:
            parts.append(torch.cat([_rows(p) for p in products], dim=1).sum(1))
        else:
            parts.append(torch.cat([p.flatten() for p in products]).sum())
    return _gathered(parts).sum(0)


def scaled(tensors: list[Tensor], factor: Tensor | float) -> list[Tensor]:
    """Return ``factor * t``; a factor of shape (M,) has one value per member."""
    if isinstance(factor, Tensor):
        factor = factor.to(tensors[0].device)
        if factor.ndim == 1:
            views = [factor.view(-1, *[1] * (t.ndim - 1)).to(t.dtype) for t in tensors]
            return foreach_mul(tensors, views)
    return foreach_mul(tensors, factor)


def choose(
    is_new: Tensor, new: list[Tensor], old: list[Tensor], stacked: bool
) -> list[Tensor]:
    """Return ``new`` where ``is_new`` is true, else ``old``.

    ``is_new`` has shape () or, if ``stacked``, (M,): one value per member.
    """
    is_new = is_new.to(old[0].device)
    chosen = []
    for left, right in zip(new, old):
        if stacked:
            shape = (-1, *[1] * (left.ndim - 1))
            chosen.append(torch.where(is_new.view(shape), left, right))
        else:
            chosen.append(torch.where(is_new, left, right))
    return chosen


def all_finite(lists: list[list[Tensor]]) -> bool:
    """Return whether no tensor has an infinity or a NaN; wait for the device."""
    parts: list[Tensor] = []
    for tensors in lists:
        filled = [tensor for tensor in tensors if tensor.numel()]
        if filled:
            parts += foreach_norm(filled, float("inf"))
    return not parts or bool(torch.isfinite(_gathered(parts)).all())
