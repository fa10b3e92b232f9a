"""Compute slices through the loss landscape of nets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance._validation import check_generator
from sklearn_sharpbalance.aggregation.nets import recompute_batch_statistics
from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.metrics._outputs import reach_last_step
from sklearn_sharpbalance.plotting._ensembles import check_ensemble, module_inputs
from sklearn_sharpbalance.runtime.rng import random_stream

Weights = list[torch.Tensor]

# Margin of a slice around the members, relative to the distance of the first two.
MARGIN = 0.25


def slice_landscape(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    members: int | Sequence[int],
    n_dims: int,
    span: float,
    n_points: int | None,
    batch_norm: str,
    random_state: Any,
) -> dict[str, Any]:
    """Measure a slice, and return the arguments of a ``LossLandscapeDisplay``."""
    estimator, X = reach_last_step(estimator, X)
    if not hasattr(estimator, "module_"):
        check_ensemble(estimator, "classes_")
    nets = getattr(estimator, "estimators_", None) or [estimator]
    chosen = _check_members(nets, members, n_dims, batch_norm)
    weights = [weights_of(nets[m].module_) for m in chosen]
    directions, positions = _directions(weights, n_dims, random_state)
    axes = _axes(positions, n_dims, span, n_points)
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, n_dims)
    classes = np.asarray(estimator.classes_)
    losses = loss_surface(
        nets[chosen[0]],
        module_inputs(estimator, X),
        encode_labels(
            y, n_classes=len(classes), n_samples=len(y), labels=classes, name="classes_"
        ),
        origin=weights[0],
        directions=directions,
        grid=grid,
        recompute=len(chosen) > 1 and batch_norm == "recompute",
    )
    names = [f"Member {m}" for m in chosen]
    x_name = y_name = "Step along a random direction"
    if len(chosen) > 1:
        x_name = f"From member {chosen[0]} to member {chosen[1]}"
    if len(chosen) == 3:
        y_name = f"Towards member {chosen[2]}, at right angles"
    return {
        "loss": losses.reshape([len(axis) for axis in reversed(axes)]),
        "x": axes[0],
        "y": axes[1] if n_dims == 2 else None,
        "positions": positions,
        "position_names": names,
        "x_name": x_name,
        "y_name": y_name,
    }


def _check_members(
    nets: Sequence[Any], members: int | Sequence[int], n_dims: int, batch_norm: str
) -> list[int]:
    """Return the indices of the members, or raise if they do not fit the slice."""
    chosen = [int(m) for m in np.atleast_1d(members)]
    if n_dims not in (1, 2):
        raise InvalidInputError(f"n_dims must be 1 or 2, got {n_dims!r}.")
    if batch_norm not in ("recompute", "keep"):
        raise InvalidInputError(
            f"batch_norm must be 'recompute' or 'keep', got {batch_norm!r}."
        )
    known = set(range(len(nets)))
    if not 1 <= len(chosen) <= 1 + n_dims or not set(chosen) <= known:
        raise InvalidInputError(
            f"members must hold one to {1 + n_dims} indices from 0 to {len(nets) - 1} "
            f"for a slice in {n_dims} dimensions, got {chosen}."
        )
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(f"members must differ, got {chosen}.")
    return chosen


def _directions(
    weights: Sequence[Weights], n_dims: int, random_state: Any
) -> tuple[list[Weights], np.ndarray]:
    """Return the directions of the slice, and the members' coordinates along them."""
    rng = check_generator(random_state)
    if len(weights) == 1:
        drawn = [filter_normalized_direction(weights[0], rng) for _ in range(n_dims)]
        return drawn, np.zeros((1, 2))
    u = difference(weights[1], weights[0])
    length = inner(u, u) ** 0.5
    positions = np.array([[0.0, 0.0], [1.0, 0.0]])
    if n_dims == 1:
        return [u], positions
    if len(weights) == 2:
        v = orthogonal(filter_normalized_direction(weights[0], rng), u, length)
        return [u, v], positions
    w = difference(weights[2], weights[0])
    v = orthogonal(w, u, length)
    third = [inner(w, u) / length**2, inner(w, v) / length**2]
    return [u, v], np.vstack([positions, third])


def _axes(
    positions: np.ndarray, n_dims: int, span: float, n_points: int | None
) -> list[np.ndarray]:
    """Return the steps along each direction.

    The steps nearest to a member are moved onto it.
    """
    if n_points is None:
        n_points = 41 if n_dims == 1 else 21
    if len(positions) == 1:
        low, high = np.full(2, -span), np.full(2, span)
    else:
        low, high = positions.min(0) - MARGIN, positions.max(0) + MARGIN
    if len(positions) == 2:
        low[1], high[1] = -0.5 - MARGIN, 0.5 + MARGIN
    axes = [np.linspace(low[d], high[d], n_points) for d in range(n_dims)]
    for axis, coordinates in zip(axes, positions.T):
        for value in coordinates:
            axis[np.abs(axis - value).argmin()] = value
    return axes


def weights_of(module: nn.Module) -> Weights:
    """Return copies of the weights, in the order of ``parameters()``."""
    return [p.detach().clone() for p in module.parameters()]


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore weights, buffers and modes exactly when the block ends."""
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
    """Draw a random direction whose filters have the norms of the weights' filters.

    A filter is a row of a weight matrix or one output channel of a convolution. The
    direction is zero for biases and norm layers, as in Li et al. (2018).
    """
    direction = []
    for weight in weights:
        if weight.ndim < 2:
            direction.append(torch.zeros_like(weight))
            continue
        drawn = torch.as_tensor(rng.standard_normal(tuple(weight.shape)))
        drawn = drawn.to(weight.device, weight.dtype)
        filters = drawn.flatten(1)  # (n_filters, filter size)
        length = weight.flatten(1).norm(dim=1) / filters.norm(dim=1).clamp(min=1e-12)
        direction.append((filters * length[:, None]).view_as(weight))
    return direction


def inner(a: Weights, b: Weights) -> float:
    """Return the inner product of two directions."""
    return sum((x.double() * y.double()).sum().item() for x, y in zip(a, b))


def difference(a: Weights, b: Weights) -> Weights:
    """Return ``a - b``."""
    return [x - y for x, y in zip(a, b)]


def orthogonal(v: Weights, u: Weights, length: float) -> Weights:
    """Return the part of ``v`` at right angles to ``u``, scaled to a length."""
    share = inner(v, u) / max(inner(u, u), 1e-30)
    rest = [x - share * y for x, y in zip(v, u)]
    scale = length / max(inner(rest, rest) ** 0.5, 1e-30)
    return [scale * x for x in rest]


def mean_loss(net: Any, data: DeviceData, batch_size: int = 512) -> float:
    """Return the mean loss of a skorch net over all samples, in evaluation mode."""
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
    *,
    origin: Weights,
    directions: Sequence[Weights],
    grid: np.ndarray,
    recompute: bool = False,
) -> np.ndarray:
    """Return the loss at ``origin + sum_i grid[p, i] * directions[i]`` for each ``p``.

    Parameters
    ----------
    net : skorch net
        Initialised net; its weights are changed, and restored at the end.
    X, y : arrays
        Samples and class codes.
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
    with restored(net.module_), random_stream(net.device):
        for p, point in enumerate(grid):
            with torch.no_grad():
                for k, parameter in enumerate(parameters):
                    value = origin[k].clone()
                    for step, direction in zip(point.tolist(), directions):
                        value.add_(direction[k], alpha=step)
                    parameter.copy_(value)
            # An enclosing autocast would reuse its casts of the previous weights.
            torch.clear_autocast_cache()
            if recompute:
                recompute_batch_statistics(net, data)
            losses[p] = mean_loss(net, source)
    return losses
