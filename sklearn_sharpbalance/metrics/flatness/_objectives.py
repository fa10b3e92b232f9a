"""Mean loss of batches and its gradient, as functions of the weights.

One batch at a time, on a GPU by the replay of a CUDA graph; or many batches of a small
network stacked, each with weights of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sklearn_sharpbalance.autodiff import map_tensors, trainable_parameters
from sklearn_sharpbalance.autodiff.layer_taps import (
    ParameterWatch,
    UnsupportedModuleError,
)
from sklearn_sharpbalance.autodiff.state import (
    MATH_ATTENTION,
    WITHOUT_VMAP_WARNINGS,
    LossModule,
)
from sklearn_sharpbalance.metrics.flatness._frame import Member, Weights
from sklearn_sharpbalance.runtime.devices import capture_graph

# Multiplications of a pass below which one thread is faster than several, which wait
# for each other at every operation.
SMALL_PASS = 2**25
# Weights of all stacked batches: more do not fit into the cache of a CPU.
STACKED_WEIGHTS = 2**22


class Objective:
    """Mean loss of the loaded batch and its gradient, as functions of the weights.

    A network of many small layers spends most of its time on kernel launches. On a GPU
    the pass is therefore captured once and replayed while batches have the same shape;
    a module that cannot be captured runs as usual.

    ``losses(x, y)`` returns the loss of each sample, (B,).
    """

    n_batches = 1  # loaded together

    def __init__(
        self,
        losses: Callable[[Any, Tensor], Tensor],
        weights: Weights,
        capture: bool = True,
    ):
        self.losses = losses
        self.weights = weights
        self.origin = weights.origin
        self.capture = capture and weights.origin.is_cuda
        self.batch: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: tuple[Tensor, Tensor] | None = None

    def load(self, x: Any, y: Tensor) -> None:
        """Set the batch for the next calls."""
        new = (x, y)
        if self.graph is not None and _shapes(new) == _shapes(self.batch):
            _copy(self.batch, new)
            return
        self.batch = map_tensors(torch.clone, new)
        self.graph = self.result = None
        if self.capture:
            self._try_capture()

    def __call__(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss (scalar) and gradient (d,), valid until the next call."""
        self.weights.write(vector)
        if self.graph is None or self.result is None:
            return self._run()
        self.graph.replay()
        return self.result

    def _run(self):
        x, y = self.batch
        loss = self.losses(x, y).mean()
        grads = torch.autograd.grad(loss, self.weights.params, allow_unused=True)
        return loss.detach(), self.weights.flatten(grads)

    def _try_capture(self):
        device = self.weights.origin.device
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
        state = generator.clone_state()
        try:
            # The graph would not contain casts that an autocast has cached before.
            graph, result = capture_graph(
                self._run, device, before_each=torch.clear_autocast_cache
            )
        except RuntimeError:  # a module that waits for the device, for example
            self.capture = False
            # torch leaves the device's generator in the state of a running capture.
            generator.graphsafe_set_state(state)
            return
        self.graph, self.result = graph, result


def _shapes(batch):
    return map_tensors(lambda t: (tuple(t.shape), t.dtype), batch)


def _copy(old, new):
    targets: list[Tensor] = []
    map_tensors(targets.append, old)
    sources: list[Tensor] = []
    map_tensors(sources.append, new)
    for target, source in zip(targets, sources):
        target.copy_(source)


class StackedObjective:
    """Mean loss of each loaded batch and its gradient, as functions of the weights.

    A pass of a small network takes less time than the launches of its operations.
    ``torch.func.vmap`` launches them once for all batches.

    The last stack may have fewer than ``n_batches`` batches.
    """

    def __init__(self, member: Member, weights: Weights, size: int, n_batches: int):
        self.weights = weights
        self.size = size
        self.n_batches = n_batches
        module = member.net.module_
        self.names = [f"module.{name}" for name in trainable_parameters(module)]
        self.loss_module = LossModule(module, member.losses)
        self.losses = torch.func.vmap(self._loss)
        self.batch: Any = None
        self.origin = weights.origin[None]
        self.gradients = torch.empty_like(self.origin)

    def load(self, x: Any, y: Tensor) -> None:
        """Set the batches for the next calls: samples of all batches in a row."""
        n_loaded = len(y) // self.size
        self.batch = map_tensors(
            lambda t: t.reshape(n_loaded, self.size, *t.shape[1:]), (x, y)
        )
        self.origin = self.weights.origin.expand(n_loaded, -1)
        if len(self.gradients) != n_loaded:
            self.gradients = torch.empty_like(self.origin)

    def __call__(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses (n_loaded,) and gradients (n_loaded, d) at (n_loaded, d).

        The gradients are valid until the next call.
        """
        params = self._split(vectors)
        # Not torch.func.grad: its first call imports torch's compiler, for seconds.
        with WITHOUT_VMAP_WARNINGS, MATH_ATTENTION:
            losses = self.losses(params, *self.batch)
            grads = torch.autograd.grad(losses.sum(), params, materialize_grads=True)
        torch.cat([g.flatten(1) for g in grads], dim=1, out=self.gradients)
        return losses.detach(), self.gradients

    def check(self) -> None:
        """Raise if the module does not support it, or uses weights of its own."""
        x, y = map_tensors(lambda t: t[0], self.batch)
        params = self.weights.params
        leaves = [p.detach().clone().requires_grad_() for p in params]
        watch = ParameterWatch(
            dict.fromkeys(params, self.loss_module),
            "a parameter is not read from its module",
        )
        with watch:
            self._loss(leaves, x, y)
        self(self.origin)

    def _split(self, vectors):
        """Return a tensor (n_loaded, ...) per parameter from vectors (n_loaded, d)."""
        pieces = vectors.split(self.weights.sizes, dim=1)
        return [
            v.reshape(len(v), *p.shape).to(p.dtype).detach().requires_grad_()
            for v, p in zip(pieces, self.weights.params)
        ]

    def _loss(self, params, x, y):
        """Return the mean loss of one batch."""
        swapped = dict(zip(self.names, params))
        return torch.func.functional_call(self.loss_module, swapped, (x, y)).mean()


def is_small(module: nn.Module, weights: Weights, batch_size: int) -> bool:
    """Return whether all matrix products are small and on a CPU.

    The cost of a convolution depends on the size of images; it counts as large.
    """
    parameters = list(module.parameters())
    n_weights = sum(p.numel() for p in parameters)
    return (
        not weights.origin.is_cuda
        and all(p.ndim <= 2 for p in parameters)
        and n_weights * batch_size < SMALL_PASS
    )


def stacked_objective(
    member: Member, weights: Weights, batch_size: int
) -> StackedObjective | None:
    """Return an objective of many batches; None where batches run one by one.

    Stacked are several batches of a small network on a CPU, if ``torch.func.vmap``
    supports its module.
    """
    n_batches = len(member.rows) // batch_size
    n_batches = min(n_batches, STACKED_WEIGHTS // weights.origin.numel())
    if (
        n_batches < 2
        or not is_small(member.net.module_, weights, batch_size)
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    objective = StackedObjective(member, weights, batch_size, n_batches)
    objective.load(*member.rows[: 2 * batch_size])
    try:
        objective.check()
    except (UnsupportedModuleError, RuntimeError, TypeError, ValueError):
        # An actual error of the module or of the data occurs one by one too.
        return None
    return objective
