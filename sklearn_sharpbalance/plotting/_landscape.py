"""Losses of a net at other weights; its own weights come back bit by bit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance.aggregation.rules import recompute_batch_statistics
from sklearn_sharpbalance.autodiff.losses import sample_losses
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.members.state import seeded

Weights = list[torch.Tensor]


def weights_of(module: nn.Module) -> Weights:
    """Copies of the trainable weights, in the order of ``parameters()``."""
    return [p.detach().clone() for p in module.parameters()]


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Put weights, buffers and modes back as they were, to the last bit."""
    tensors = [*module.parameters(), *module.buffers()]
    before = [t.detach().clone() for t in tensors]
    modes = [(m, m.training) for m in module.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before):
                tensor.copy_(value)
        torch.clear_autocast_cache()
        for part, mode in modes:
            part.training = mode


def filter_normalized_direction(
    weights: Sequence[torch.Tensor], rng: np.random.Generator
) -> Weights:
    """Random direction whose filters are as long as those of the weights.

    A filter is a row of a weight matrix or one output channel of a convolution.
    Biases and norm layers are left out, as Li et al. (2018) do.
    """
    direction = []
    for weight in weights:
        if weight.ndim < 2:
            direction.append(torch.zeros_like(weight))
            continue
        drawn = torch.as_tensor(rng.standard_normal(tuple(weight.shape)))
        drawn = drawn.to(weight.device, weight.dtype)
        filters = drawn.flatten(1)  # (filters, weights of one)
        length = weight.flatten(1).norm(dim=1) / filters.norm(dim=1).clamp(min=1e-12)
        direction.append((filters * length[:, None]).view_as(weight))
    return direction


def inner(a: Weights, b: Weights) -> float:
    """Inner product of two directions."""
    return sum((x.double() * y.double()).sum().item() for x, y in zip(a, b))


def difference(a: Weights, b: Weights) -> Weights:
    """``a - b``."""
    return [x - y for x, y in zip(a, b)]


def orthogonal(v: Weights, u: Weights, length: float) -> Weights:
    """Part of ``v`` at right angles to ``u``, of the given length."""
    share = inner(v, u) / max(inner(u, u), 1e-30)
    rest = [x - share * y for x, y in zip(v, u)]
    scale = length / max(inner(rest, rest) ** 0.5, 1e-30)
    return [scale * x for x in rest]


def mean_loss(net: Any, data: DeviceData, batch_size: int = 512) -> float:
    """Mean loss of a skorch net over all samples, in evaluation mode."""
    n = len(data.y)
    total = 0.0
    net.module_.eval()
    with torch.no_grad():
        for start in range(0, n, batch_size):
            rows = np.arange(start, min(start + batch_size, n))
            for x, index in data.iterate(rows[None]):
                losses = sample_losses(net, net.infer(x), data.y[index])
                total += losses.double().sum().item()
    return total / n


def loss_surface(
    net: Any,
    X: Any,
    y: np.ndarray,
    origin: Weights,
    directions: Sequence[Weights],
    grid: np.ndarray,
    *,
    recompute: bool = False,
) -> np.ndarray:
    """Mean loss at ``origin + sum_i grid[p, i] * directions[i]`` for each point ``p``.

    Parameters
    ----------
    net : skorch net
        Initialised; its weights are moved about and put back.
    X, y : arrays
        Data, with class codes.
    origin : list of Tensor
    directions : sequence of list of Tensor
    grid : ndarray of shape (n_points, n_directions)
    recompute : bool
        Recompute BatchNorm statistics on the data at every point.

    Returns
    -------
    losses : ndarray of shape (n_points,)
    """
    data = TrainingData(X, y)
    source = DeviceData(data, net.device)
    parameters = list(net.module_.parameters())
    losses = np.empty(len(grid))
    with restored(net.module_), seeded(net.device):
        for p, point in enumerate(grid):
            with torch.no_grad():
                for k, parameter in enumerate(parameters):
                    value = origin[k].clone()
                    for step, direction in zip(point.tolist(), directions):
                        value.add_(direction[k], alpha=step)
                    parameter.copy_(value)
            # An autocast around it all would go on with casts of the last point.
            torch.clear_autocast_cache()
            if recompute:
                recompute_batch_statistics(net, data)
            losses[p] = mean_loss(net, source)
    return losses
