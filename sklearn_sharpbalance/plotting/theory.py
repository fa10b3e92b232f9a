"""Theorems 1 and 2, and a simulation of their model."""

from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_names,
    colour,
    ink,
    marker,
    place_labels,
    tidy,
    wrapped,
)
from sklearn_sharpbalance.plotting._groups import drawable
from sklearn_sharpbalance.theory import (
    sam_diversity,
    sam_sharpness_bounds,
    simulate,
    subset_diversity,
    subset_sharpness_bound,
)
from sklearn_sharpbalance.theory._checks import check_grid

__all__ = ["TheoryDisplay"]


class TheoryDisplay(Display):
    """Diversity against bounds of the sharpness and against simulated sharpness.

    Use :meth:`from_theory` or :meth:`from_simulation` to make one.

    Parameters
    ----------
    diversity : array-like of shape (n_points,)
        Diversity of each setting by the theorem.
    upper : array-like of shape (n_points,)
        Upper bound of the sharpness.
    lower : array-like of shape (n_points,), default=None
        Lower bound; negative values carry no information and are not drawn.
    simulated_sharpness, simulated_diversity : array-like, default=None
        Results of a simulation, of shape (n_points,).
    sharpness_error, diversity_error : array-like, default=None
        Standard errors of the results.
    labels : sequence of str, default=None
        Text beside each point of the upper bound.
    name : str, default=None
        Name of the method, for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    upper_line_, lower_line_ : matplotlib Line2D or None
    points_ : matplotlib ErrorbarContainer or None
        Results of the simulation.

    References
    ----------
    .. [1] H. Lu et al. (2024). Sharpness-diversity tradeoff: improving flat ensembles
       with SharpBalance. NeurIPS. Figures 1b, 2, 9, 10 and 11.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import TheoryDisplay
    >>> display = TheoryDisplay.from_theory(2, 0.1, [0.1, 0.2], n=60, d=20, name="SAM")
    >>> bool(display.diversity[0] > display.diversity[1])
    True
    """

    def __init__(
        self,
        diversity,
        upper,
        *,
        lower=None,
        simulated_sharpness=None,
        simulated_diversity=None,
        sharpness_error=None,
        diversity_error=None,
        labels=None,
        name=None,
    ):
        self.diversity = diversity
        self.upper = upper
        self.lower = lower
        self.simulated_sharpness = simulated_sharpness
        self.simulated_diversity = simulated_diversity
        self.sharpness_error = sharpness_error
        self.diversity_error = diversity_error
        self.labels = labels
        self.name = name

    @classmethod
    def from_theory(
        cls,
        k,
        eta,
        rho,
        *,
        radius=0.5,
        n=3000,
        d=150,
        n_subsets=1,
        sigma=1.0,
        theta_norm=1.0,
        variant="derived",
        labels=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Plot Theorem 1, or Theorem 2 if the data are split into parts.

        Parameters
        ----------
        k, eta, rho : int or float, or array-likes of them
            Number of steps, step size and perturbation of SAM. They are broadcast, and
            each setting is a point, row by row.
        radius : float, default=0.5
            Radius within which sharpness is measured.
        n, d : int, default=3000, 150
            Numbers of training samples and features.
        n_subsets : int, default=1
            Number of parts of the data; more than one is Theorem 2.
        sigma, theta_norm : float, default=1.0
            Standard deviation of the initial weights, and norm of the teacher's
            weights.
        variant : {"derived", "printed"}, default="derived"
            See :func:`~sklearn_sharpbalance.theory.phi`.
        labels : sequence of str, default=None
            Text beside each point of the upper bound.
        name : str, default=None
            Name for the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : TheoryDisplay
        """
        curves = _theory_curves(
            k,
            eta,
            rho,
            radius=radius,
            n=n,
            d=d,
            n_subsets=n_subsets,
            sigma=sigma,
            theta_norm=theta_norm,
            variant=variant,
        )
        return cls(**curves, labels=labels, name=name).plot(ax, **kwargs)

    @classmethod
    def from_simulation(
        cls,
        k,
        eta,
        rho,
        *,
        radius=0.5,
        n=3000,
        d=150,
        n_subsets=1,
        n_matrices=50,
        n_starts=50,
        sigma=1.0,
        theta_norm=1.0,
        maximizer="exact",
        variant="derived",
        random_state=None,
        labels=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Simulate the model, and plot the results with the theorem.

        Parameters
        ----------
        k, eta, rho, radius, n, d, n_subsets, sigma, theta_norm, variant, labels, name
            See :meth:`from_theory`.
        n_matrices, n_starts : int, default=50, 50
            Number of data sets, and of initial weights for each.
        maximizer : {"exact", "ascent"}, default="exact"
            See :func:`~sklearn_sharpbalance.theory.simulate`.
        random_state : None, int or Generator, default=None
            Controls the data sets and initial weights.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : TheoryDisplay
        """
        curves = _theory_curves(
            k,
            eta,
            rho,
            radius=radius,
            n=n,
            d=d,
            n_subsets=n_subsets,
            sigma=sigma,
            theta_norm=theta_norm,
            variant=variant,
        )
        run = simulate(
            *_settings(k, eta, rho),
            radius=radius,
            n=n,
            d=d,
            n_subsets=n_subsets,
            n_matrices=n_matrices,
            n_starts=n_starts,
            sigma=sigma,
            theta_norm=theta_norm,
            maximizer=maximizer,
            random_state=random_state,
        )
        display = cls(
            **curves,
            simulated_sharpness=run.sharpness,
            simulated_diversity=run.diversity,
            sharpness_error=run.sharpness_error,
            diversity_error=run.diversity_error,
            labels=labels,
            name=name,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, color=None, bounds="both", legend=True):
        """Draw the bounds as lines and the simulation as points.

        Settings beyond the range of floats are left out and listed in the legend.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on, which may have other methods; None makes a new figure.
        color : color, default=None
            The next colour of the palette if None.
        bounds : {"both", "upper"}, default="both"
            Bounds to draw; the lower one only if it is known.
        legend : bool, default=True
            Whether to draw a legend.

        Returns
        -------
        display : TheoryDisplay
        """
        if bounds not in ("both", "upper"):
            raise InvalidInputError(
                f"bounds must be 'both' or 'upper', got {bounds!r}."
            )
        diversity = np.asarray(self.diversity, dtype=float)
        upper = np.asarray(self.upper, dtype=float)
        if upper.shape != diversity.shape:
            raise InvalidInputError(
                f"upper must have the shape {diversity.shape} of diversity, got "
                f"{upper.shape}."
            )
        labels = check_names(self.labels, len(upper), "Setting")
        ax = self._start(ax)
        n_before = sum(line.get_gid() == "theory" for line in ax.lines)
        color = colour(n_before, ax) if color is None else color
        prefix = "" if self.name is None else f"{wrapped(self.name, 40)}, "
        look = {"color": color, "lw": 1.6, "marker": "."}
        (self.upper_line_,) = ax.plot(
            upper, diversity, label=f"{prefix}upper bound", gid="theory", **look
        )
        self.lower_line_ = self.points_ = None
        if bounds == "both" and self.lower is not None:
            lower = np.asarray(self.lower, dtype=float)
            shown = (lower > 0) & np.isfinite(lower)
            if shown.any():
                (self.lower_line_,) = ax.plot(
                    lower[shown],
                    diversity[shown],
                    ls="--",
                    label=f"{prefix}lower bound",
                    **look,
                )
        if self.simulated_sharpness is not None:
            self._draw_simulation(ax, color, n_before, f"{prefix}simulated")
        shown = drawable(upper, diversity, log=False)
        if not shown.all():
            left_out = [label for label, is_in in zip(labels, shown) if not is_in]
            text = f"{prefix}off the axes: {', '.join(left_out)}"
            ax.plot([], [], " ", label=text)
        ax.set(xlabel="Sharpness", ylabel="Diversity")
        ax.margins(0.12)
        tidy(ax)
        if legend:
            ax.legend(fontsize=9)
        if self.labels is not None:
            labels = [label for label, is_in in zip(labels, shown) if is_in]
            place_labels(ax, upper[shown], diversity[shown], labels)
        return self

    def _draw_simulation(self, ax, color, n_before, label):
        self.points_ = ax.errorbar(
            _finite_or_nan(self.simulated_sharpness),
            _finite_or_nan(self.simulated_diversity),
            xerr=_finite_or_nan(self.sharpness_error),
            yerr=_finite_or_nan(self.diversity_error),
            fmt=marker(n_before),
            ms=6,
            mec=ink(ax),
            mew=0.6,
            elinewidth=1,
            capsize=2,
            color=color,
            label=label,
        )


def _finite_or_nan(values):
    """Replace infinite values by NaN, since matplotlib subtracts them for the bars."""
    return None if values is None else np.where(np.isfinite(values), values, np.nan)


def _settings(k: Any, eta: Any, rho: Any) -> list[np.ndarray]:
    """Return steps, step sizes and perturbations of all settings, (n_points,) each."""
    return [values.ravel() for values in check_grid(k, eta, rho)]


def _theory_curves(
    k: Any,
    eta: Any,
    rho: Any,
    *,
    radius: float,
    n: int,
    d: int,
    n_subsets: int,
    sigma: float,
    theta_norm: float,
    variant: str,
) -> dict[str, Any]:
    """Return diversity and bounds of sharpness of each setting, (n_points,) each."""
    diversity, lower, upper = [], [], []
    for n_steps, step_size, perturbation in zip(*_settings(k, eta, rho)):
        model: dict[str, Any] = {
            "k": int(n_steps),
            "eta": float(step_size),
            "rho": float(perturbation),
            "n": n,
            "d": d,
            "variant": variant,
        }
        if n_subsets == 1:
            diversity.append(sam_diversity(sigma=sigma, **model))
            low, high = sam_sharpness_bounds(
                radius=radius, theta_norm=theta_norm, **model
            )
        else:
            model["n_subsets"] = n_subsets
            diversity.append(
                subset_diversity(sigma=sigma, theta_norm=theta_norm, **model)
            )
            low = np.nan
            high = subset_sharpness_bound(radius=radius, theta_norm=theta_norm, **model)
        lower.append(low)
        upper.append(high)
    return {
        "diversity": np.array(diversity),
        "lower": None if np.isnan(lower).all() else np.array(lower),
        "upper": np.array(upper),
    }
