"""Which slice through the loss landscape: origin, directions and steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import as_generator, encode_labels
from sklearn_sharpbalance.metrics._outputs import reach_last_step
from sklearn_sharpbalance.plotting._ensembles import (
    check_ensemble,
    module_inputs,
)
from sklearn_sharpbalance.plotting._landscape import (
    Weights,
    difference,
    filter_normalized_direction,
    inner,
    loss_surface,
    orthogonal,
    weights_of,
)

# How far beyond the members a slice between them reaches, in distances of two.
MARGIN = 0.25
RANDOM_NAME = "Step along a random direction"


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
    """What a ``LossLandscapeDisplay`` is made of."""
    estimator, X = reach_last_step(estimator, X)
    if not hasattr(estimator, "module_"):
        check_ensemble(estimator, "classes_")
    nets = getattr(estimator, "estimators_", None) or [estimator]
    chosen = _check(nets, members, n_dims, batch_norm)
    weights = [weights_of(nets[m].module_) for m in chosen]
    directions, positions = _directions(weights, n_dims, random_state)
    axes = _axes(positions, n_dims, span, n_points)
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, n_dims)
    classes = np.asarray(estimator.classes_)
    losses = loss_surface(
        nets[chosen[0]],
        module_inputs(estimator, X),
        encode_labels(y, len(classes), len(y), classes, "classes_"),
        weights[0],
        directions,
        grid,
        recompute=len(chosen) > 1 and batch_norm == "recompute",
    )
    names = [f"Member {m}" for m in chosen]
    return {
        "loss": losses.reshape([len(axis) for axis in reversed(axes)]),
        "x": axes[0],
        "y": axes[1] if n_dims == 2 else None,
        "positions": positions,
        "position_names": names,
        "x_name": f"From {names[0].lower()} to {names[1].lower()}"
        if len(chosen) > 1
        else RANDOM_NAME,
        "y_name": f"Towards member {chosen[2]}, at right angles"
        if len(chosen) == 3
        else RANDOM_NAME,
    }


def _check(
    nets: Sequence[Any], members: int | Sequence[int], n_dims: int, batch_norm: str
) -> list[int]:
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
    """Directions of the slice, and the members' coordinates along them."""
    rng = as_generator(random_state)
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
    """Steps along each direction; the nearest ones are moved onto the members."""
    n = (41 if n_dims == 1 else 21) if n_points is None else n_points
    if len(positions) == 1:
        low, high = np.full(2, -span), np.full(2, span)
    else:
        low, high = positions.min(0) - MARGIN, positions.max(0) + MARGIN
    if len(positions) == 2:
        low[1], high[1] = -0.5 - MARGIN, 0.5 + MARGIN
    axes = [np.linspace(low[d], high[d], n) for d in range(n_dims)]
    for axis, coordinates in zip(axes, positions.T):
        for value in coordinates:
            axis[np.abs(axis - value).argmin()] = value
    return axes
