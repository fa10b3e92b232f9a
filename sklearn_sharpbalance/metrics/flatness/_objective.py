"""Loss of a batch and its gradient, on a GPU by the replay of a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sklearn_sharpbalance.autodiff.rows import map_tensors
from sklearn_sharpbalance.metrics.flatness._weights import Weights
from sklearn_sharpbalance.runtime.devices import capture_graph

__all__ = ["Objective"]


class Objective:
    """Mean loss of the loaded batch and its gradient, as functions of the weights.

    A network of many small layers spends most of its time on kernel launches. On a GPU
    the pass is therefore captured once and replayed while batches have the same shape;
    a module that cannot be captured runs as usual.

    Parameters
    ----------
    losses : callable
        ``losses(x, y)`` returns the loss of each sample, (B,).
    weights : Weights
    capture : bool, default=True
        Whether to try a capture on a GPU.

    Attributes
    ----------
    n_batches : int
        Number of batches that are loaded together.
    origin : tensor of shape (d,)
    """

    n_batches = 1

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
