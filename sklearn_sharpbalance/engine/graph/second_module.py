"""A copy of a member's module, for the normal part of a step of Momentum-SAM.

The SAM part passes at perturbed weights and the normal part at the weights themselves.
One pass after the other leaves a GPU partly idle, because each part is small. With a
copy of the module, both passes run at the same time.
"""

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import fx, nn

from sklearn_sharpbalance.engine.graph.cast_weights import CastWeights
from sklearn_sharpbalance.engine.graph.fused_norms import FusedNorms, NormStep
from sklearn_sharpbalance.engine.stacking import is_hooked
from sklearn_sharpbalance.runtime.torch_internals import (
    foreach_add_,
    foreach_copy_,
    foreach_mul_,
    foreach_sub_,
)

__all__ = ["SecondModule", "second_module"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # not derived ones


def second_module(
    module, precision: str, device: torch.device
) -> "SecondModule | None":
    """Return a :class:`SecondModule`, or None if it could give other results.

    This is the case if layers have hooks, if buffers other than those of BatchNorm may
    change in a pass, or if running statistics change more than once in a pass.

    Parameters
    ----------
    module : MemberModule
        Without fused layers, cast weights and counters of batches.
    precision : str
    device : torch.device
    """
    layers = list(module.module.modules())
    if any(is_hooked(layer) for layer in (module, *layers)):
        return None
    if not all(_combines(layer) for layer in layers if list(layer.buffers(False))):
        return None
    try:
        copied = copy.deepcopy(module)
    except Exception:  # attributes of the user's module may not support copies
        return None
    second = SecondModule(module, copied, precision, device)
    if second.statistics and not _calls_norms_once(second.norms.fused):
        return None
    return second


class SecondModule:
    """A copy of a module with its own weights and statistics, on its own stream.

    Call :meth:`hold`, then :meth:`start`, then :meth:`finish`.

    Parameters
    ----------
    module : MemberModule
        Without fused layers and cast weights.
    copied : MemberModule
        A deep copy of it, changed in place.
    precision : str
    device : torch.device
    """

    def __init__(self, module, copied, precision, device):
        self.module = copied.train()
        self.weights = list(module.parameters())
        self.copies = list(copied.parameters())  # not yet cast
        self.statistics, self.factors = _statistics(module)
        self.own_statistics, _ = _statistics(copied)
        self.before = [torch.empty_like(tensor) for tensor in self.statistics]
        self.cast = CastWeights(copied, precision)
        self.norms = FusedNorms(copied, wanted=True)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._results: list[torch.Tensor] = []

    @torch.no_grad()
    def hold(self) -> None:
        """Copy the current weights and statistics; call it before they change.

        The pass does not wait for anything that the current stream does later.
        """
        foreach_copy_(self.copies, self.weights)
        if self.statistics:
            foreach_copy_(self.before, self.statistics)
            foreach_copy_(self.own_statistics, self.statistics)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def start(
        self, loss_of: Callable[[nn.Module, CastWeights], torch.Tensor]
    ) -> torch.Tensor:
        """Start a pass on the stream; return its loss, to be read after `finish`.

        Parameters
        ----------
        loss_of : callable
            Returns the loss of the part of the batch, given a module and cast weights.
            Its inputs must exist before :meth:`hold` and until :meth:`finish`.
        """
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            loss = loss_of(self.module, self.cast)
            loss.backward()
            self.cast.pull()
        return loss.detach()

    @torch.no_grad()
    def finish(self, loss: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Wait for the pass; return pairs of the module's weight and gradient.

        Running statistics become those of this pass and then the module's own: with
        momentum m, statistics r before, r1 of the module and r2 of the copy, they are
        r1 + (1 - m) (r2 - r).

        Parameters
        ----------
        loss : Tensor
            Result of :meth:`start`.
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
        # Their memory belongs to the stream, which another member may share: torch has
        # 32 streams in all. Keep it until the current stream has read it.
        self._results = [loss, *(gradient for _, gradient in pairs)]
        return pairs


def _combines(layer: nn.Module) -> bool:
    """Whether running statistics of two passes at the same time can be combined."""
    return type(layer) in BATCH_NORMS and layer.momentum is not None


def _statistics(module: nn.Module) -> tuple[list[torch.Tensor], list[float]]:
    """Return all running statistics, and 1 - momentum for each of them."""
    tensors: list[torch.Tensor] = []
    factors: list[float] = []
    for layer in module.modules():
        # Without a momentum there is no second module, see `_combines`.
        if isinstance(layer, BATCH_NORMS) and layer.momentum is not None:
            for tensor in (layer.running_mean, layer.running_var):
                if tensor is not None:
                    tensors.append(tensor)
                    factors.append(1 - layer.momentum)
    return tensors, factors


def _calls_norms_once(traced: fx.GraphModule | None) -> bool:
    """Whether a pass calls each BatchNorm once; False if it could not be traced."""
    if traced is None:
        return False
    calls: Counter[nn.Module] = Counter()
    for node in traced.graph.nodes:
        if node.op == "call_module":
            layer = traced.get_submodule(str(node.target))
            calls[layer.norm if isinstance(layer, NormStep) else layer] += 1
    norms = [layer for layer in traced.modules() if isinstance(layer, BATCH_NORMS)]
    return all(calls[norm] == 1 for norm in norms)
