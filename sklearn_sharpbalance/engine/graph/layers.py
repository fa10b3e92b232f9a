"""Changes to layers while their step is captured: casts and counters cost kernels."""

import torch
from torch import nn

from sklearn_sharpbalance.runtime.devices import AUTOCAST_DTYPES
from sklearn_sharpbalance.runtime.torch_internals import (
    BATCH_NORM,
    CONVOLUTION,
    foreach_copy_,
)

__all__ = ["BatchCounters", "CastWeights"]

CAST_LAYERS = (CONVOLUTION, nn.Linear)


class CastWeights:
    """Replaces the weights of a module's layers by cast copies until :meth:`close`.

    The optimizer keeps the float32 weights. Results are those of autocast. Without a
    lower ``precision`` nothing changes.
    """

    def __init__(self, module: nn.Module, precision: str):
        self.places: list[tuple[nn.Module, str, nn.Parameter]] = []
        dtype = AUTOCAST_DTYPES.get(precision)
        counts = _uses(module)
        for layer in module.modules() if dtype is not None else []:
            if isinstance(layer, CAST_LAYERS):
                for name, weight in layer.named_parameters(recurse=False):
                    if weight.requires_grad and counts[id(weight)] == 1:
                        self.places.append((layer, name, weight))
        self.masters: list[torch.Tensor] = [weight for _, _, weight in self.places]
        self.casts: list[torch.Tensor] = [
            nn.Parameter(weight.detach().to(dtype)) for weight in self.masters
        ]
        self.open()

    def open(self) -> None:
        """Put the cast weights into the layers."""
        for (layer, name, _), cast in zip(self.places, self.casts):
            setattr(layer, name, cast)

    @torch.no_grad()
    def push(self) -> None:
        """Cast the current weights; call it before a forward pass."""
        if self.casts:
            foreach_copy_(self.casts, self.masters)

    @torch.no_grad()
    def pull(self) -> None:
        """Move the gradients of a backward pass to the float32 weights."""
        if not self.casts:
            return
        pairs = zip(self.masters, self.casts)
        used = [(m, c, c.grad) for m, c in pairs if c.grad is not None]
        grads = [torch.empty_like(master) for master, _, _ in used]
        foreach_copy_(grads, [grad for _, _, grad in used])
        for (master, cast, _), grad in zip(used, grads):
            master.grad, cast.grad = grad, None

    def close(self) -> None:
        """Put the float32 weights back into the layers."""
        for layer, name, weight in self.places:
            setattr(layer, name, weight)


def _uses(module: nn.Module) -> dict[int, int]:
    """Count the layers that have each parameter; tied weights are left to autocast."""
    counts: dict[int, int] = {}
    for layer in module.modules():
        for weight in layer.parameters(recurse=False):
            counts[id(weight)] = counts.get(id(weight), 0) + 1
    return counts


class BatchCounters:
    """Removes the batch counters of BatchNorm from a module until :meth:`close`.

    They cost a kernel per layer and pass, and only ``momentum=None`` uses them.
    """

    def __init__(self, module: nn.Module):
        # InstanceNorm has such a counter, too, but does not use it.
        self.kept = [
            (layer, layer.num_batches_tracked)
            for layer in module.modules()
            if isinstance(layer, BATCH_NORM)
            and layer.num_batches_tracked is not None
            and layer.momentum is not None
        ]
        self.n_passes = 0
        self.open()

    def open(self) -> None:
        """Remove the counters from the layers."""
        for layer, _ in self.kept:
            layer.num_batches_tracked = None

    def close(self) -> None:
        """Restore the counters, and add the passes since :meth:`open`."""
        for layer, counter in self.kept:
            # A module may keep a layer in evaluation mode while it trains.
            passes = self.n_passes if layer.training else 0
            layer.num_batches_tracked = counter.add_(passes)
        self.n_passes = 0
