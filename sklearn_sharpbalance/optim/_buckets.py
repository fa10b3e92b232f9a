"""Parameters of one group, device and dtype, which are perturbed together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim._tensors import widened
from sklearn_sharpbalance.runtime.torch_internals import foreach_copy_

__all__ = ["Bucket", "as_real", "both_passes", "collect", "gather", "restore"]


@dataclass
class Bucket:
    """Parameters that one multi-tensor call can process.

    Attributes
    ----------
    group : dict
        The parameter group.
    params : list of Tensor
    weights : list of Tensor
        The parameters as real tensors (views of the same memory).
    grads : list of Tensor
        Their gradients, in single precision at least.
    saved : list of Tensor
        The weights before the perturbation.
    pending : list of Tensor
        State that the method keeps if the perturbed pass succeeds.
    norm : Tensor or None
        The norm that the direction was divided by.
    """

    group: dict[str, Any]
    params: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    saved: list[Tensor] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)
    norm: Tensor | None = None

    @property
    def stacked(self) -> bool:
        return self.group["stacked"]

    def keep_weights(self) -> None:
        """Copy the weights, bit for bit (adding zero would turn -0.0 into 0.0)."""
        saved = [torch.empty_like(w) for w in self.weights]
        foreach_copy_(saved, self.weights)
        self.saved = saved  # set last: an interrupt must not leave an empty copy

    def own_grads(self) -> list[Tensor]:
        """Return the current ``.grad``, as real tensors (views of the same memory)."""
        return [as_real(_dense(p)) for p in self.params]


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _dense(param: Tensor) -> Tensor:
    grad = param.grad
    assert grad is not None
    if grad.layout != torch.strided:
        raise InvalidInputError(
            "Sharpness-aware optimizers need dense gradients; a parameter of shape "
            f"{tuple(param.shape)} has a gradient of layout {grad.layout}. Use a layer "
            "with dense gradients, e.g. nn.Embedding(..., sparse=False)."
        )
    return grad


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
            bucket = buckets.setdefault(key, Bucket(group))
            bucket.params.append(param)
            bucket.weights.append(as_real(param))
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
            foreach_copy_(bucket.weights, bucket.saved)
            bucket.saved = []
