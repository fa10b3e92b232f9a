"""Vectors as lists of tensors, and the parameters that are perturbed together.

A list is one vector or, if ``stacked``, one vector per member: every tensor then has a
leading axis of ``M`` members. Only :func:`all_finite` waits for the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from sklearn_sharpbalance.runtime.torch_internals import (
    foreach_add_,
    foreach_copy_,
    foreach_mul,
    foreach_norm,
)

HALF = (torch.float16, torch.bfloat16)


@dataclass
class Bucket:
    """Parameters of one group, device and dtype, for one multi-tensor call."""

    group: dict[str, Any]
    params: list[Tensor] = field(default_factory=list)
    # Their gradients, in single precision at least.
    grads: list[Tensor] = field(default_factory=list)
    # The weights before the perturbation.
    saved: list[Tensor] = field(default_factory=list)
    # State that the method keeps if the perturbed pass succeeds.
    pending: list[Tensor] = field(default_factory=list)
    norm: Tensor | None = None  # that the direction was divided by

    @property
    def stacked(self) -> bool:
        return self.group["stacked"]

    def keep_weights(self) -> None:
        """Copy the weights, bit for bit (adding zero would turn -0.0 into 0.0)."""
        saved = [torch.empty_like(w) for w in self.params]
        foreach_copy_(saved, self.params)
        self.saved = saved  # set last: an interrupt must not leave an empty copy

    def own_grads(self) -> list[Tensor]:
        """Return the current ``.grad`` of each parameter."""
        return [p.grad for p in self.params if p.grad is not None]


def collect(
    param_groups: Sequence[dict[str, Any]], wanted: Callable[[Tensor], bool]
) -> list[Bucket]:
    """Return buckets of all trainable parameters that are wanted."""
    buckets: dict[tuple[int, torch.device, torch.dtype], Bucket] = {}
    for index, group in enumerate(param_groups):
        for param in group["params"]:
            if not param.requires_grad or not wanted(param):
                continue
            key = (index, param.device, param.dtype)
            buckets.setdefault(key, Bucket(group)).params.append(param)
    return list(buckets.values())


def gather(param_groups: Sequence[dict[str, Any]]) -> list[Bucket]:
    """Return buckets of all trainable parameters that have a gradient."""
    buckets = collect(param_groups, wanted=lambda param: param.grad is not None)
    for bucket in buckets:
        bucket.grads = widened(bucket.own_grads())
    return buckets


def both_passes(
    param_groups: Sequence[dict[str, Any]], buckets: Sequence[Bucket]
) -> list[tuple[Bucket, list[Tensor]]]:
    """Return buckets with the clean gradients, and the perturbed gradients.

    They have all parameters with a gradient in either pass; a gradient that is
    missing in one pass is zero there. ``buckets`` have the clean gradients; the
    perturbed ones are in ``.grad``.
    """
    params = (p for group in param_groups for p in group["params"])
    if all(p.grad is None for p in params):
        return []  # there was no backward pass at the perturbed weights
    clean = {p: g for b in buckets for p, g in zip(b.params, b.grads)}
    for param in clean:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    pairs = []
    for bucket in gather(param_groups):
        moved = bucket.grads
        bucket.grads = [
            clean[p] if p in clean else torch.zeros_like(g)
            for p, g in zip(bucket.params, moved)
        ]
        pairs.append((bucket, moved))
    return pairs


def restore(buckets: Sequence[Bucket]) -> None:
    """Restore the weights that :meth:`Bucket.keep_weights` copied."""
    for bucket in buckets:
        if bucket.saved:
            foreach_copy_(bucket.params, bucket.saved)
            bucket.saved = []


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
    """Return the Euclidean norm of the vector of all lists, () or (M,) if stacked.

    The tensors of one list have one device and dtype.
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
    """Return the inner product of two vectors, () or (M,) if stacked."""
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
            return foreach_mul(tensors, [_column(factor, t) for t in tensors])
    return foreach_mul(tensors, factor)


def add_scaled_(params: list[Tensor], tensors: list[Tensor], factor: Tensor) -> None:
    """Add :func:`scaled` tensors to parameters in place."""
    if factor.ndim == 0:
        foreach_add_(params, scaled(tensors, factor))
        return
    for param, t in zip(params, tensors):  # a stack is few large tensors
        param.addcmul_(t, _column(factor.to(t.device), t))


def _column(factor: Tensor, t: Tensor) -> Tensor:
    """Return one value for each member, (M, 1, ...)."""
    return factor.view(-1, *[1] * (t.ndim - 1)).to(t.dtype)


def choose(
    is_new: Tensor, new: list[Tensor], old: list[Tensor], stacked: bool
) -> list[Tensor]:
    """Return ``new`` where ``is_new``, () or (M,) if stacked, is true, else ``old``."""
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
