"""A copy of a member's module, which passes a part of the batch at the same time.

In a balanced step of Momentum-SAM, the SAM part passes at perturbed weights and the
normal part at the weights themselves. One pass after the other would leave a GPU partly
idle, because each part is small.
"""

import copy
from contextlib import nullcontext

import torch

from sklearn_sharpbalance.engine.graph.batch_counters import BatchCounters
from sklearn_sharpbalance.engine.graph.cast_weights import CastWeights
from sklearn_sharpbalance.engine.graph.fused_norms import FusedNorms
from sklearn_sharpbalance.engine.stacking import is_hooked
from sklearn_sharpbalance.runtime.torch_internals import (
    BATCH_NORM,
    TRACKING_NORM,
    foreach_add_,
    foreach_copy_,
    foreach_mul_,
    foreach_sub_,
)

__all__ = ["SecondModule", "can_be_copied"]


def can_be_copied(module) -> bool:
    """Whether the running statistics of two passes at a time can be combined."""
    parts = list(module.modules())
    if any(is_hooked(part) for part in parts):
        return False
    tracking = [p for p in parts if isinstance(p, TRACKING_NORM) and list(p.buffers())]
    return all(isinstance(p, BATCH_NORM) and p.momentum is not None for p in tracking)


class SecondModule:
    """A copy of a module with its own weights and statistics, on its own stream.

    Call :meth:`hold`, then :meth:`start`, then :meth:`finish`.

    Parameters
    ----------
    module : MemberModule
        Without fused layers and cast weights; see :func:`can_be_copied`.
    precision : str
    device : torch.device
    """

    def __init__(self, module, precision, device):
        self.module = copy.deepcopy(module).train()
        self.weights = list(module.parameters())
        self.copies = list(self.module.parameters())
        self.statistics, factors = _statistics(module)
        self.own_statistics, _ = _statistics(self.module)
        self.factors = [torch.tensor(factor, device=device) for factor in factors]
        self.before = [torch.empty_like(t) for t in self.statistics]
        self.counters = BatchCounters(self.module)
        self.cast = CastWeights(self.module, precision)
        self.norms = FusedNorms(self.module, wanted=True)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @torch.no_grad()
    def hold(self) -> None:
        """Copy the current weights and statistics."""
        foreach_copy_(self.copies, self.weights)
        if self.statistics:
            foreach_copy_(self.before, self.statistics)
            foreach_copy_(self.own_statistics, self.statistics)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def start(self, loss_of) -> torch.Tensor:
        """Start a pass on the stream and return its loss.

        Parameters
        ----------
        loss_of : callable
            Returns the loss of the part of the batch, given a module and cast weights.
        """
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            loss = loss_of(self.module, self.cast)
            loss.backward()
            self.cast.pull()
        return loss.detach()

    @torch.no_grad()
    def finish(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Wait for the pass; return pairs of weight and gradient.

        Running statistics become those of this pass and then the module's own:
        with momentum m and statistics r before, r' = r1 + (1 - m) (r2 - r).
        """
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        if self.statistics:
            foreach_sub_(self.own_statistics, self.before)
            foreach_mul_(self.own_statistics, self.factors)
            foreach_add_(self.statistics, self.own_statistics)
        pairs = []
        for weight, own in zip(self.weights, self.copies):
            if own.grad is not None:
                pairs.append((weight, own.grad))
                own.grad = None
        return pairs


def _statistics(module):
    """Return running statistics of all norms, and 1 - momentum for each of them."""
    tensors, factors = [], []
    for layer in module.modules():
        if isinstance(layer, BATCH_NORM) and layer.running_mean is not None:
            tensors += [layer.running_mean, layer.running_var]
            factors += [1 - layer.momentum] * 2
    return tensors, factors
