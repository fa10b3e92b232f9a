"""What one perturbation moves: parameters of one group, device and dtype together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim._tensors import widened

__all__ = ["Bucket", "as_real", "gather", "restore"]


@dataclass
class Bucket:
    """Parameters that one multi-tensor call can serve, and what is kept of them.

    ``weights`` are the parameters as real tensors (views of the same memory) and
    ``grads`` their gradients, of at least single precision. ``saved`` holds the
    weights from before the perturbation, ``pending`` what the method will remember
    once the perturbed pass has succeeded, ``norm`` what divided the direction.
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
        torch._foreach_copy_(saved, self.weights)
        self.saved = saved  # filled: an interrupt before leaves nothing to put back

    def own_grads(self) -> list[Tensor]:
        """What lies in ``.grad`` now, as real tensors (views of the same memory)."""
        return [as_real(_dense(p)) for p in self.params]


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _dense(param: Tensor) -> Tensor:
    grad = param.grad
    assert grad is not None
    if grad.layout != torch.strided:
        raise InvalidInputError(
            "Sharpness-aware optimizers need dense gradients; a parameter of shape "
            f"{tuple(param.shape)} has a gradient of layout {grad.layout}. Make the "
            "layer give dense ones, e.g. nn.Embedding(..., sparse=False)."
        )
    return grad


def gather(param_groups: Sequence[dict[str, Any]]) -> list[Bucket]:
    """Buckets of all trainable parameters that have a gradient."""
    buckets: dict[tuple[int, torch.device, torch.dtype], Bucket] = {}
    for index, group in enumerate(param_groups):
        for param in group["params"]:
            if param.grad is None or not param.requires_grad:
                continue
            key = (index, param.device, param.dtype)
            bucket = buckets.setdefault(key, Bucket(group))
            bucket.params.append(param)
            bucket.weights.append(as_real(param))
    for bucket in buckets.values():
        bucket.grads = widened(bucket.own_grads())
    return list(buckets.values())


def restore(buckets: Sequence[Bucket]) -> None:
    """Put back the weights that :meth:`Bucket.keep_weights` kept."""
    for bucket in buckets:
        if bucket.saved:
            torch._foreach_copy_(bucket.weights, bucket.saved)
            bucket.saved = []
