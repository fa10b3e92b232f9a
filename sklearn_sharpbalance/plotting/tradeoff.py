"""Sharpness against diversity: one point per ensemble."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.aggregation.rules import combine_probas
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.metrics._tradeoff import (
    DIVERSITIES,
    GAINS,
    diversity_of,
    gain_of,
    mean_sharpness,
    sharpness_label,
)
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_fitted,
    check_names,
    named,
    place_labels,
    tidy,
)
from sklearn_sharpbalance.plotting._groups import (
    draw_fits,
    draw_legend,
    draw_points,
    fit_tradeoff,
    notes_on_missing,
    plain_log_axes,
    widen_axis,
)

__all__ = ["TradeoffDisplay"]


class TradeoffDisplay(Display):
    """Trade-off between the sharpness and the diversity of members.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one. An axis is at
    least a fifth as long as its largest value, so that small differences, which may be
    chance, look small.

    Parameters
    ----------
    sharpness, diversity : array-like of shape (n_ensembles,)
        Mean sharpness of each ensemble's members, and their diversity.
    color : array-like of shape (n_ensembles,), default=None
        Values that colour the points, such as improvement or accuracy.
    labels : sequence of str, default=None
        Text beside each point, such as its rho.
    groups : sequence of str, default=None
        Group of each ensemble, such as its method; each has a marker and a line.
    sharpness_name, diversity_name : str, default="Sharpness", "Diversity"
        Labels of the axes.
    color_name : str, default=None
        Label of the colour bar.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    scatters_ : dict of str to matplotlib PathCollection
    lines_ : dict of str to matplotlib Line2D
    fits_ : dict of str to TradeoffFit or None
        Fitted line of each group; its ``slope`` is the paper's beta.
    colorbar_ : matplotlib Colorbar or None
    texts_ : list of matplotlib Annotation

    References
    ----------
    .. [1] H. Lu et al. (2024). Sharpness-diversity tradeoff: improving flat ensembles
       with SharpBalance. NeurIPS. Figures 1c, 3, 4 and 5.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import TradeoffDisplay
    >>> display = TradeoffDisplay([1.0, 2.0, 3.0], [0.4, 0.5, 0.6]).plot()
    >>> round(display.fits_["all"].slope, 6)
    np.float64(0.1)
    """

    def __init__(
        self,
        sharpness,
        diversity,
        *,
        color=None,
        labels=None,
        groups=None,
        sharpness_name="Sharpness",
        diversity_name="Diversity",
        color_name=None,
    ):
        self.sharpness = sharpness
        self.diversity = diversity
        self.color = color
        self.labels = labels
        self.groups = groups
        self.sharpness_name = sharpness_name
        self.diversity_name = diversity_name
        self.color_name = color_name

    @classmethod
    def from_estimator(
        cls,
        estimators,
        X,
        y,
        *,
        X_train=None,
        y_train=None,
        sharpness=None,
        random_state=None,
        **kwargs,
    ):
        """Plot fitted ensembles.

        Parameters
        ----------
        estimators : fitted ensemble, list of them, or dict of names to them
            Each may be a pipeline or a search that ends in one. The names of a
            dictionary become the labels of the points.
        X, y : array-likes
            Samples on which diversity, improvement and accuracy are measured; the
            paper uses corrupted test data.
        X_train, y_train : array-likes, default=None
            Samples on which sharpness is measured; ``X`` and ``y`` if both are None.
            The paper uses training data.
        sharpness : callable, default=None
            ``sharpness(estimator, X, y) -> float``, such as the other measures of
            :mod:`sklearn_sharpbalance.metrics`; None is ``adaptive_sharpness``. Its
            name is the label of the axis.
        random_state : int, Generator, RandomState or None, default=None
            Controls the batches on which ``adaptive_sharpness`` is measured.
        **kwargs
            Passed to :meth:`from_predictions` and :meth:`plot`.
        """
        if (X_train is None) != (y_train is None):
            given, missing = ("X", "y") if y_train is None else ("y", "X")
            raise InvalidInputError(
                f"{given}_train was passed without {missing}_train. Pass both, or "
                "neither to measure sharpness on X and y."
            )
        ensembles = named(estimators, "Ensemble")
        for estimator in ensembles.values():
            check_fitted(estimator, "member_predict_proba")
        X_train, y_train = (X, y) if X_train is None else (X_train, y_train)
        outputs = [outputs_of(estimator, X) for estimator in ensembles.values()]
        values = [
            mean_sharpness(estimator, X_train, y_train, sharpness, random_state)
            for estimator in ensembles.values()
        ]
        options = {
            "classes": outputs[0].classes,
            "ensemble_probas": [one.proba for one in outputs],
            "labels": list(ensembles) if hasattr(estimators, "keys") else None,
            "sharpness_name": sharpness_label(sharpness),
        }
        probas = [one.member_probas for one in outputs]
        return cls.from_predictions(y, probas, values, **(options | kwargs))

    @classmethod
    def from_predictions(
        cls,
        y_true,
        member_probas,
        sharpness,
        *,
        classes=None,
        ensemble_probas=None,
        diversity="disagreement_error_ratio",
        color="improvement",
        labels=None,
        groups=None,
        sharpness_name="Sharpness",
        **kwargs,
    ):
        """Plot ensembles whose members' probabilities and sharpness are known.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Class codes, the columns of the probabilities; or any with ``classes``.
        member_probas : sequence of array-likes
            For each ensemble, of shape (n_members, n_samples, n_classes).
        sharpness : array-like of shape (n_ensembles,)
            Mean sharpness of each ensemble's members.
        classes : array-like of shape (n_classes,), default=None
            Label of each column.
        ensemble_probas : sequence of array-likes of shape (N, C), default=None
            Predictions of the ensembles; the softmax of the mean logit if None.
        diversity : str or callable, default="disagreement_error_ratio"
            "disagreement_error_ratio", "disagreement", "variance_diversity",
            "kl_diversity", or a function ``diversity(member_probas) -> float``.
        color : str or None, default="improvement"
            Values that colour the points: "improvement", "member_accuracy" or
            "ensemble_accuracy".
        labels, groups, sharpness_name
            See the class.
        **kwargs
            Passed to :meth:`plot`.
        """
        if len(member_probas) != len(sharpness):
            raise InvalidInputError(
                f"There must be one sharpness per ensemble, got {len(sharpness)} for "
                f"{len(member_probas)} ensembles."
            )
        diversity_name, diversity_values = _diversity_values(
            diversity, y_true, member_probas, classes
        )
        color_name, color_values = _colour_values(
            color,
            y_true,
            member_probas=member_probas,
            ensemble_probas=ensemble_probas,
            classes=classes,
        )
        display = cls(
            np.asarray(sharpness, dtype=float),
            diversity_values,
            color=color_values,
            labels=labels,
            groups=groups,
            sharpness_name=sharpness_name,
            diversity_name=diversity_name,
            color_name=color_name,
        )
        return display.plot(**kwargs)

    def plot(self, ax=None, *, log=False, colorbar=True):
        """Draw the points, their labels and lines fitted to three or more of a group.

        An ensemble whose sharpness or diversity is not finite is left out and listed
        in the legend. One whose colour is not finite, such as an improvement of -inf,
        is white.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        log : bool, default=False
            Logarithmic axes; the lines are then fitted to logarithms.
        colorbar : bool, default=True
            Whether to draw the scale of the colours.
        """
        x = np.asarray(self.sharpness, dtype=float)
        y = np.asarray(self.diversity, dtype=float)
        groups = np.asarray(["all"] * len(x) if self.groups is None else self.groups)
        color = None if self.color is None else np.asarray(self.color, dtype=float)
        labels = np.asarray(check_names(self.labels, len(x), "Ensemble"), dtype=object)
        _check_lengths(sharpness=x, diversity=y, groups=groups, color=color)
        shown = np.isfinite(x) & np.isfinite(y)
        if log and shown.any():
            # Raise before a figure is made if a value is not positive.
            fit_tradeoff(x[shown], y[shown], log=True)
        color = None if color is None else color[shown]
        notes = notes_on_missing(labels[~shown], color)
        x, y, groups, labels = x[shown], y[shown], groups[shown], labels[shown]
        ax = self._start(ax, (5.4, 4.0))
        self.scatters_ = draw_points(ax, x, y, groups, color=color)
        widen_axis(ax, "x", x, log=log)
        widen_axis(ax, "y", y, log=log)
        if log:
            plain_log_axes(ax)
        else:
            ax.locator_params(axis="x", nbins=4)
        self.lines_, self.fits_ = draw_fits(ax, x, y, groups, log=log)
        ax.set(xlabel=self.sharpness_name, ylabel=self.diversity_name)
        tidy(ax)
        ax.margins(0.12)
        self.colorbar_ = None
        if colorbar and self.scatters_ and color is not None:
            mappable = next(iter(self.scatters_.values()))
            self.colorbar_ = ax.figure.colorbar(mappable, ax=ax, label=self.color_name)
        draw_legend(
            ax,
            self.scatters_,
            self.fits_,
            is_grouped=self.groups is not None,
            is_filled=color is None,
            notes=notes,
        )
        self.texts_ = []
        if self.labels is not None:
            self.texts_ = place_labels(ax, x, y, labels)
        return self


def _diversity_values(
    diversity: str | Callable, y_true: Any, member_probas: Sequence, classes: Any
) -> tuple[str, np.ndarray]:
    """Return the name of the measure, and its value for each ensemble."""
    if callable(diversity):
        name = getattr(diversity, "__name__", "diversity").replace("_", " ")
        return name.capitalize(), np.array([diversity(p) for p in member_probas])
    if diversity not in DIVERSITIES:
        raise InvalidInputError(
            f"Unknown diversity {diversity!r}. Choose one of "
            f"{', '.join(map(repr, DIVERSITIES))}, or pass a function of member_probas."
        )
    values = [diversity_of(diversity, y_true, p, classes) for p in member_probas]
    return DIVERSITIES[diversity][0], np.array(values)


def _colour_values(
    color: str | None,
    y_true: Any,
    member_probas: Sequence,
    ensemble_probas: Sequence | None,
    classes: Any,
) -> tuple[str | None, np.ndarray | None]:
    """Return the name of what colours the points, and its value for each ensemble."""
    if color is None:
        return None, None
    if color not in GAINS:
        raise InvalidInputError(
            f"Unknown color {color!r}. Choose one of {', '.join(map(repr, GAINS))}, "
            "or None."
        )
    if ensemble_probas is None:
        ensemble_probas = [combine_probas(probas) for probas in member_probas]
    pairs = zip(member_probas, ensemble_probas)
    values = [gain_of(color, y_true, probas, p, classes) for probas, p in pairs]
    return GAINS[color], np.array(values)


def _check_lengths(*, sharpness, **others):
    """Raise if an array does not have one value for each ensemble."""
    for name, values in others.items():
        if values is not None and values.shape != sharpness.shape:
            raise InvalidInputError(
                f"{name} must hold {len(sharpness)} values, as sharpness does, got "
                f"shape {values.shape}."
            )
