"""Slices through the loss landscape, around one member or between members."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from sklearn_sharpbalance._validation import check_generator
from sklearn_sharpbalance.aggregation.nets import recompute_batch_statistics
from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.metrics._outputs import reach_last_step
from sklearn_sharpbalance.plotting._base import (
    SEQUENTIAL,
    Display,
    colour,
    legend_above,
    n_drawn,
    place_labels,
    tidy,
)
from sklearn_sharpbalance.runtime.rng import random_stream

# Margin of a slice around the members, relative to the distance of the first two.
MARGIN = 0.25
LOG_RANGE = 20  # the colours of a wider surface are logarithmic
N_LEVELS = 12


class LossLandscapeDisplay(Display):
    """Loss along one or two directions in the space of weights.

    Use :meth:`from_estimator` to make one.

    Parameters
    ----------
    loss : array-like of shape (n_x,) or (n_y, n_x)
        Mean loss at the points of the slice.
    x : array-like of shape (n_x,)
        Steps along the first direction.
    y : array-like of shape (n_y,), default=None
        Steps along the second direction, of a slice in two dimensions.
    positions : array-like of shape (n_members, 2), default=None
        Coordinates of members in the slice.
    position_names : sequence of str, default=None
        Names of these members.
    name : str, default=None
        Name of the curve, for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    line_ : matplotlib Line2D or None
        The curve of a slice in one dimension.
    contours_ : matplotlib QuadContourSet or None
        The surface of a slice in two dimensions; ``colorbar_`` is its scale.
    points_ : matplotlib artist or None
        The members.

    Notes
    -----
    A random direction is filter-normalised [1]_: each of its filters has the norm of
    the weights' filter. A step of 1 then moves a filter by its own norm, and slices of
    different networks are comparable. Two members span a line, with one at 0 and the
    other at 1. Three members span a plane. Between members the BatchNorm statistics do
    not match the weights, and are recomputed on the samples at every point.

    References
    ----------
    .. [1] H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein (2018). Visualizing the loss
       landscape of neural nets. NeurIPS.

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import LossLandscapeDisplay
    >>> display = LossLandscapeDisplay([1.0, 0.0, 1.0], [-1, 0, 1]).plot()
    >>> display.ax_.get_ylabel()
    'Loss'
    """

    def __init__(
        self, loss, x, y=None, *, positions=None, position_names=None, name=None
    ):
        self.loss = loss
        self.x = x
        self.y = y
        self.positions = positions
        self.position_names = position_names
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        members=0,
        n_dims=1,
        span=1.0,
        n_points=21,
        random_state=None,
        name=None,
        **kwargs,
    ):
        """Measure and plot a slice through a fitted ensemble's loss landscape.

        Parameters
        ----------
        estimator : fitted ensemble or skorch net, or a pipeline that ends in one
        X : array-like of shape (n_samples, ...)
        y : array-like of shape (n_samples,)
        members : int or sequence of one to three int, default=0
            One member: random directions around it. Two: the line between them, with
            ``n_dims=1``. Three: the plane through them, with ``n_dims=2``.
        n_dims : {1, 2}, default=1
            Draw a curve (1) or a surface (2).
        span : float, default=1.0
            Largest step from one member along a random direction, on both sides.
        n_points : int, default=21
            Points along each direction.
        random_state : int, Generator, RandomState or None, default=None
            Controls the random directions.
        name : str, default=None
            Name for the legend.
        **kwargs
            Passed to :meth:`plot`.
        """
        check_is_fitted(estimator)
        estimator, X = reach_last_step(estimator, X)
        nets = getattr(estimator, "estimators_", None) or [estimator]
        chosen = _check_members(nets, members, n_dims)
        nets = [nets[m] for m in chosen]
        directions, positions = _directions(nets, n_dims, random_state)
        axes = _axes(positions, n_dims, span, n_points)
        loss = loss_surface(
            nets[0],
            _module_inputs(estimator, X),
            _codes(estimator, y),
            directions=directions,
            grid=np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, n_dims),
            recompute=len(chosen) > 1,
        )
        display = cls(
            loss.reshape([len(axis) for axis in reversed(axes)]),
            axes[0],
            axes[1] if n_dims == 2 else None,
            positions=positions,
            position_names=[f"Member {m}" for m in chosen],
            name=name,
        )
        return display.plot(**kwargs)

    def plot(self, ax=None):
        """Draw the slice.

        The colours of a surface are logarithmic if it spans more than a factor of 20.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on, which may have other curves; None makes a new figure.
        """
        loss = np.asarray(self.loss, dtype=float)
        expected = (len(self.x),) if self.y is None else (len(self.y), len(self.x))
        if loss.shape != expected:
            raise InvalidInputError(
                f"loss must have shape {expected} to fit x and y, got {loss.shape}."
            )
        if not np.isfinite(loss).any():
            raise InvalidInputError("loss has no finite value to draw.")
        ax = self._start(ax, (5.0, 3.8), square=self.y is not None)
        self.line_ = self.contours_ = self.colorbar_ = self.points_ = None
        if self.y is None:
            self._draw_curve(ax, loss)
        else:
            self._draw_surface(ax, loss)
        return self

    def _draw_curve(self, ax, loss):
        color = colour(n_drawn(ax, "landscape"), ax)
        look: dict[str, Any] = {"color": color, "lw": 1.8, "gid": "landscape"}
        (self.line_,) = ax.plot(self.x, loss, label=self.name, **look)
        ax.set(xlabel=_axis_names(self.position_names)[0], ylabel="Loss")
        ax.locator_params(axis="x", nbins=7)
        tidy(ax, grid="y")
        legend_above(ax, *ax.get_legend_handles_labels())
        if self.positions is not None:
            at = np.asarray(self.positions)[:, 0]
            height = np.interp(at, self.x, loss)
            self.points_ = ax.scatter(at, height, color=color, s=36, zorder=3)
            ax.margins(y=0.12)
            if len(at) > 1:
                place_labels(ax, at, height, self.position_names)

    def _draw_surface(self, ax, loss):
        loss = np.where(np.isfinite(loss), loss, np.nan)  # NaN stays white
        levels, is_log = _levels(np.nanmin(loss), np.nanmax(loss))
        look: dict[str, Any] = {"cmap": SEQUENTIAL, "norm": "log" if is_log else None}
        self.contours_ = ax.contourf(self.x, self.y, loss, levels=levels, **look)
        ax.contour(self.x, self.y, loss, levels=levels, colors="white", linewidths=0.5)
        x_name, y_name = _axis_names(self.position_names)
        ax.set(xlabel=x_name, ylabel=y_name, aspect="equal")
        ax.locator_params(nbins=6)
        self.colorbar_ = ax.figure.colorbar(
            self.contours_, ax=ax, label="Loss", format="%.2g" if is_log else None
        )
        if self.positions is not None:
            x, y = np.asarray(self.positions).T
            self.points_ = ax.scatter(x, y, s=44, c="white", ec="black", zorder=3)
            for text in place_labels(ax, x, y, self.position_names):
                text.set(color="black")  # on white, whatever the style
                text.set_bbox({"fc": "white", "ec": "none", "alpha": 0.75, "pad": 1})


def _levels(low: float, high: float) -> tuple[np.ndarray, bool]:
    """Return levels that cover the loss, and whether they are logarithmic."""
    from matplotlib.ticker import MaxNLocator

    if low <= 0 or high <= LOG_RANGE * low:
        high = max(high, low + 1e-9)
        return np.asarray(MaxNLocator(N_LEVELS).tick_values(low, high)), False
    # Extend both ends a little, so that rounding leaves no point uncovered.
    return np.geomspace(low * (1 - 1e-6), high * (1 + 1e-6), N_LEVELS + 1), True


def _axis_names(names: Sequence[str] | None) -> tuple[str, str]:
    """Return the labels of the axes of a slice through these members."""
    if names is None or len(names) == 1:
        return "Step along a random direction", "Step along another direction"
    x_name = f"From {names[0].lower()} to {names[1].lower()}"
    return x_name, f"Towards {names[-1].lower()}, at right angles"


def _module_inputs(estimator: Any, X: Any) -> Any:
    """Return samples as the members' modules accept them: validated, in layout."""
    if hasattr(estimator, "member_inputs"):
        return estimator.member_inputs(X)
    array = np.asarray(X)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _codes(estimator: Any, y: Any) -> np.ndarray:
    """Return the class code of each label."""
    classes = np.asarray(estimator.classes_)
    return encode_labels(
        y, n_classes=len(classes), n_samples=len(y), labels=classes, name="classes_"
    )


def _check_members(
    nets: Sequence[Any], members: int | Sequence[int], n_dims: int
) -> list[int]:
    """Return the indices of the members, or raise if they do not fit the slice."""
    chosen = [int(m) for m in np.atleast_1d(members)]
    if n_dims not in (1, 2):
        raise InvalidInputError(f"n_dims must be 1 or 2, got {n_dims!r}.")
    known = set(range(len(nets)))
    is_possible = len(chosen) in (1, 1 + n_dims) and set(chosen) <= known
    if not is_possible or len(set(chosen)) < len(chosen):
        raise InvalidInputError(
            f"members must hold one or {1 + n_dims} different indices from 0 to "
            f"{len(nets) - 1} for a slice in {n_dims} dimensions, got {chosen}."
        )
    return chosen


def _directions(
    nets: Sequence[Any], n_dims: int, random_state: Any
) -> tuple[list[torch.Tensor], np.ndarray]:
    """Return the directions of the slice, and the members' coordinates along them."""
    if len(nets) == 1:
        rng, module = check_generator(random_state), nets[0].module_
        drawn = [filter_normalized_direction(module, rng) for _ in range(n_dims)]
        return drawn, np.zeros((1, 2))
    origin, *others = (weights_of(net.module_) for net in nets)
    u = others[0] - origin
    positions = np.array([[0.0, 0.0], [1.0, 0.0]])
    if n_dims == 1:
        return [u], positions
    w = others[1] - origin
    v = _orthogonal(w, u)
    third = [_inner(w, direction) / _inner(u, u) for direction in (u, v)]
    return [u, v], np.vstack([positions, third])


def _axes(
    positions: np.ndarray, n_dims: int, span: float, n_points: int
) -> list[np.ndarray]:
    """Return the steps along each direction.

    The steps nearest to a member are moved onto it.
    """
    if len(positions) == 1:
        low, high = np.full(2, -span), np.full(2, span)
    else:
        low, high = positions.min(0) - MARGIN, positions.max(0) + MARGIN
    axes = [np.linspace(low[d], high[d], n_points) for d in range(n_dims)]
    for axis, coordinates in zip(axes, positions.T):
        for value in coordinates:
            axis[np.abs(axis - value).argmin()] = value
    return axes


def weights_of(module: nn.Module) -> torch.Tensor:
    """Return a copy of all weights as one vector."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def filter_normalized_direction(
    module: nn.Module, rng: np.random.Generator
) -> torch.Tensor:
    """Draw a random direction whose filters have the norms of the weights' filters.

    A filter is a row of a weight matrix or one output channel of a convolution. The
    direction is zero for biases and norm layers, as in Li et al. (2018).
    """
    parts = []
    for weight in module.parameters():
        if weight.ndim < 2:
            parts.append(torch.zeros_like(weight.detach()))
            continue
        drawn = torch.as_tensor(rng.standard_normal(tuple(weight.shape)))
        filters = drawn.to(weight.device, weight.dtype).flatten(1)
        length = weight.detach().flatten(1).norm(dim=1)  # (n_filters,)
        length = length / filters.norm(dim=1).clamp(min=1e-12)
        parts.append((filters * length[:, None]).flatten())
    return torch.cat(parts)


def _inner(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.dot(a.double(), b.double()).item()


def _orthogonal(v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return the part of ``v`` at right angles to ``u``, scaled to the length of u."""
    rest = v - _inner(v, u) / max(_inner(u, u), 1e-30) * u
    return (_inner(u, u) / max(_inner(rest, rest), 1e-30)) ** 0.5 * rest


def loss_surface(
    net: Any,
    X: Any,
    y: np.ndarray,
    *,
    directions: Sequence[torch.Tensor],
    grid: np.ndarray,
    recompute: bool = False,
) -> np.ndarray:
    """Return the loss at ``w + sum_i grid[p, i] * directions[i]`` for each ``p``.

    ``w`` are the weights of ``net``, ``grid`` has shape (n_points, n_directions).
    ``recompute`` recomputes BatchNorm statistics on the data at every point.
    """
    data = TrainingData(X, y)
    source = DeviceData(data, net.device)
    probe = _with_copied_module(net)
    origin = weights_of(net.module_)
    losses = np.empty(len(grid))
    with random_stream(net.device):
        for p, steps in enumerate(grid.tolist()):
            moves = zip(steps, directions)
            point = sum((step * direction for step, direction in moves), start=origin)
            _set_weights(probe.module_, point)
            if recompute:
                recompute_batch_statistics(probe, data)
            losses[p] = _mean_loss(probe, source)
    return losses


def _with_copied_module(net: Any) -> Any:
    """Return a net with a copied module, so that no weights of the net change."""
    probe = object.__new__(type(net))
    vars(probe).update(vars(net))
    probe.module_ = deepcopy(net.module_)
    return probe


def _set_weights(module: nn.Module, vector: torch.Tensor) -> None:
    parameters = list(module.parameters())
    parts = vector.split([parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, parts):
            parameter.copy_(part.view_as(parameter))
    # An enclosing autocast would reuse its casts of the previous weights.
    torch.clear_autocast_cache()


def _mean_loss(net: Any, data: DeviceData, batch_size: int = 512) -> float:
    """Return the mean loss over all samples, in evaluation mode."""
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
