"""Slices through the loss landscape, around one member or between members."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    SEQUENTIAL,
    Display,
    colour,
    place_labels,
    tidy,
    wrapped,
)
from sklearn_sharpbalance.plotting._landscape import slice_landscape

__all__ = ["LossLandscapeDisplay"]


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
    x_name, y_name : str, default="Step"
        Labels of the axes.
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
    other at 1; a second direction is then random and at right angles. Three members
    span a plane.

    References
    ----------
    .. [1] H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein (2018). Visualizing the loss
       landscape of neural nets. NeurIPS.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import LossLandscapeDisplay
    >>> display = LossLandscapeDisplay([1.0, 0.0, 1.0], [-1, 0, 1]).plot()
    >>> display.ax_.get_ylabel()
    'Loss'
    """

    def __init__(
        self,
        loss,
        x,
        y=None,
        *,
        positions=None,
        position_names=None,
        x_name="Step",
        y_name="Step",
        name=None,
    ):
        self.loss = loss
        self.x = x
        self.y = y
        self.positions = positions
        self.position_names = position_names
        self.x_name = x_name
        self.y_name = y_name
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
        n_points=None,
        batch_norm="recompute",
        random_state=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Measure and plot a slice through a fitted ensemble's loss landscape.

        The weights are changed for this, and restored exactly at the end.

        Parameters
        ----------
        estimator : fitted ensemble or skorch net, or a pipeline that ends in one
        X : array-like of shape (n_samples, ...)
        y : array-like of shape (n_samples,)
        members : int or sequence of one to three int, default=0
            One member: random directions around it. Two: the line between them.
            Three: the plane through them, with ``n_dims=2``.
        n_dims : {1, 2}, default=1
            Draw a curve (1) or a surface (2).
        span : float, default=1.0
            Largest step from one member along a random direction, on both sides.
        n_points : int, default=None
            Points along each direction; 41 in one dimension and 21 in two if None.
        batch_norm : {"recompute", "keep"}, default="recompute"
            Between members the running statistics do not match the weights: recompute
            them on ``X`` at every point, or keep those of the first member. Around one
            member they are kept.
        random_state : int, Generator, RandomState or None, default=None
            Controls the random directions.
        name : str, default=None
            Name for the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : LossLandscapeDisplay
        """
        found = slice_landscape(
            estimator,
            X,
            y,
            members=members,
            n_dims=n_dims,
            span=span,
            n_points=n_points,
            batch_norm=batch_norm,
            random_state=random_state,
        )
        return cls(**found, name=name).plot(ax, **kwargs)

    def plot(
        self,
        ax=None,
        *,
        color=None,
        log=None,
        levels=12,
        cmap=SEQUENTIAL,
        colorbar=True,
    ):
        """Draw the slice.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on, which may have other curves; None makes a new figure.
        color : color, default=None
            Colour of a curve; the next one of the palette if None.
        log : bool, default=None
            Whether the loss is logarithmic. None is True for a surface that spans more
            than a factor of 20.
        levels : int, default=12
            Number of contours of a surface.
        cmap : str or Colormap, default="cividis"
            Colours of the values.
        colorbar : bool, default=True
            Whether to draw the scale of the colours.

        Returns
        -------
        display : LossLandscapeDisplay
        """
        loss = np.asarray(self.loss, dtype=float)
        expected = (len(self.x),) if self.y is None else (len(self.y), len(self.x))
        if loss.shape != expected:
            raise InvalidInputError(
                f"loss must have shape {expected} to fit x and y, got {loss.shape}."
            )
        if self.y is not None:
            loss = np.where(np.isfinite(loss), loss, np.nan)  # NaN stays white
            steps, log = surface_levels(loss, levels, log)
        ax = self._start(ax, (5.0, 3.8), square=self.y is not None)
        self.line_ = self.contours_ = self.colorbar_ = self.points_ = None
        if self.y is None:
            self._draw_curve(ax, loss, color, bool(log))
        else:
            self._draw_surface(ax, loss, log, steps, cmap, colorbar)
        return self

    def _draw_curve(self, ax, loss, color, log):
        n_before = sum(line.get_gid() == "landscape" for line in ax.lines)
        color = colour(n_before, ax) if color is None else color
        label = None if self.name is None else wrapped(self.name, 40)
        (self.line_,) = ax.plot(
            self.x, loss, color=color, lw=1.8, label=label, gid="landscape"
        )
        if log:
            ax.set_yscale("log")
        ax.set(xlabel=self.x_name, ylabel="Loss")
        ax.locator_params(axis="x", nbins=7)
        tidy(ax, grid="y")
        if self.positions is not None:
            at = np.asarray(self.positions)[:, 0]
            height = np.interp(at, self.x, loss)
            self.points_ = ax.scatter(at, height, color=color, s=36, zorder=3)
            ax.margins(y=0.12)
            if len(at) > 1:
                place_labels(ax, at, height, self.position_names)
        if self.name is not None:
            ax.legend(fontsize=9)

    def _draw_surface(self, ax, loss, log, steps, cmap, colorbar):
        norm = {"norm": "log"} if log else {}
        self.contours_ = ax.contourf(
            self.x, self.y, loss, levels=steps, cmap=cmap, **norm
        )
        ax.contour(self.x, self.y, loss, levels=steps, colors="white", linewidths=0.5)
        ax.set(xlabel=self.x_name, ylabel=self.y_name, aspect="equal")
        ax.locator_params(nbins=6)
        if self.positions is not None:
            at = np.asarray(self.positions)
            self.points_ = ax.scatter(
                *at.T, color="white", edgecolors="black", marker="o", s=44, zorder=3
            )
        if colorbar:
            self.colorbar_ = ax.figure.colorbar(
                self.contours_, ax=ax, label="Loss", format="%.2g" if log else None
            )
        if self.positions is not None:
            for text in place_labels(ax, at[:, 0], at[:, 1], self.position_names):
                text.set(color="black")  # on white, whatever the style
                text.set_bbox({"fc": "white", "ec": "none", "alpha": 0.75, "pad": 1})


def surface_levels(loss, n, log):
    """Return the levels of a surface, and whether they are logarithmic."""
    if np.isnan(loss).all():
        raise InvalidInputError("loss has no finite value to draw.")
    low, high = np.nanmin(loss), np.nanmax(loss)
    log = (low > 0 and high > 20 * low) if log is None else log
    return contour_levels(low, high, n, log), log


def contour_levels(low, high, n, log):
    """Return levels that cover the loss: round numbers, or evenly spaced logarithms."""
    from matplotlib.ticker import MaxNLocator

    if not log:
        return MaxNLocator(n).tick_values(low, max(high, low + 1e-9))
    if low <= 0:
        raise InvalidInputError(
            f"log=True needs a positive loss everywhere, got {low:.3g}."
        )
    # Extend both ends a little, so that rounding leaves no point uncovered.
    return np.geomspace(low * (1 - 1e-6), high * (1 + 1e-6), n + 1)
