"""Scores of a search over two parameters, as a heat map."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import SEQUENTIAL, Display, text_colour

__all__ = ["SearchDisplay"]


class SearchDisplay(Display):
    """Heat map of the scores of a search over two parameters.

    Use :meth:`from_estimator` to make one.

    Parameters
    ----------
    scores : array-like of shape (n_y, n_x)
        Mean score of each pair of values; NaN if it was not tried or failed.
    x_values, y_values : sequence
        Values of the two parameters.
    standard_errors : array-like of shape (n_y, n_x), default=None
        Standard error of each score over the folds; None or NaN are not shown.
    best : tuple of int or None, default=None
        Row and column of the chosen pair.
    x_name, y_name : str, default="flat_ratio", "rho"
        Names of the two parameters.
    score_name : str, default="score"

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    im_ : matplotlib AxesImage
    text_ : ndarray of shape (n_y, n_x) of matplotlib Text
    best_ : matplotlib Rectangle or None
        Frame of the chosen pair.
    colorbar_ : matplotlib Colorbar or None

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import SearchDisplay
    >>> scores = [[0.90, 0.93], [0.91, 0.89]]
    >>> display = SearchDisplay(scores, [0.2, 0.4], [0.02, 0.1], best=(0, 1)).plot()
    >>> display.text_[0, 1].get_text()
    '0.930'
    """

    def __init__(
        self,
        scores,
        x_values,
        y_values,
        *,
        standard_errors=None,
        best=None,
        x_name="flat_ratio",
        y_name="rho",
        score_name="score",
    ):
        self.scores = scores
        self.x_values = x_values
        self.y_values = y_values
        self.standard_errors = standard_errors
        self.best = best
        self.x_name = x_name
        self.y_name = y_name
        self.score_name = score_name

    @classmethod
    def from_estimator(
        cls, search, *, x="flat_ratio", y="rho", metric=None, ax=None, **kwargs
    ):
        """Plot the scores of a fitted search.

        If the search has further parameters, the best score over their values is shown.

        Parameters
        ----------
        search : fitted search
            ``EnsembleSearchCV``, or a search of scikit-learn.
        x, y : str, default="flat_ratio", "rho"
            Names of the parameters, without the prefix of a pipeline's step.
        metric : str, default=None
            Name of the score; None is the one that the search was refitted by.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : SearchDisplay
        """
        check_is_fitted(search, "cv_results_")
        results = search.cv_results_
        metric = _metric(search, metric)
        x_of, y_of = _values(results, x), _values(results, y)
        x_values, y_values = _in_order(x_of), _in_order(y_of)
        shape = (len(y_values), len(x_values))
        scores, errors = np.full(shape, np.nan), np.full(shape, np.nan)
        means = results[f"mean_test_{metric}"]
        n_splits = sum(
            name.startswith("split") and name.endswith(f"_test_{metric}")
            for name in results
        )
        for i, mean in enumerate(means):
            pair = (y_values.index(y_of[i]), x_values.index(x_of[i]))
            if np.isnan(scores[pair]) or mean > scores[pair]:
                scores[pair] = mean
                if n_splits > 1:
                    deviation = results[f"std_test_{metric}"][i]
                    errors[pair] = deviation / np.sqrt(n_splits - 1)
        best_index = getattr(search, "best_index_", None)
        best = None
        if best_index is not None:
            best = (y_values.index(y_of[best_index]), x_values.index(x_of[best_index]))
        display = cls(
            scores,
            x_values,
            y_values,
            standard_errors=errors,
            best=best,
            x_name=x,
            y_name=y,
            score_name=metric,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, cmap=SEQUENTIAL, vmin=None, vmax=None, colorbar=True):
        """Draw the heat map.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        cmap : str or Colormap, default="cividis"
            Colours of the scores.
        vmin, vmax : float, default=None
            Limits of the colours; pass them to compare searches.
        colorbar : bool, default=True
            Whether to draw the scale of the colours.

        Returns
        -------
        display : SearchDisplay
        """
        scores = np.asarray(self.scores, dtype=float)
        shape = (len(self.y_values), len(self.x_values))
        _check_shape(scores, shape, "scores")
        errors = np.full(shape, np.nan)
        if self.standard_errors is not None:
            errors = np.asarray(self.standard_errors, dtype=float)
            _check_shape(errors, shape, "standard_errors")
        size = (max(4.6, 1.6 + shape[1]), max(3.6, 1.2 + 0.8 * shape[0]))
        ax = self._start(ax, size)
        self.im_ = ax.imshow(
            scores, cmap=cmap, vmin=vmin, vmax=vmax, aspect="auto", origin="lower"
        )
        self.text_ = np.empty(shape, dtype=object)
        for (row, column), score in np.ndenumerate(scores):
            self.text_[row, column] = ax.text(
                column,
                row,
                _cell(score, errors[row, column]),
                ha="center",
                va="center",
                fontsize=9,
                color="0.5" if np.isnan(score) else text_colour(self.im_, score),
            )
        self.best_ = None
        if self.best is not None:
            self.best_ = self._frame(ax, *self.best)
        ax.set_xticks(range(shape[1]), [f"{value}" for value in self.x_values])
        ax.set_yticks(range(shape[0]), [f"{value}" for value in self.y_values])
        ax.set(xlabel=self.x_name, ylabel=self.y_name)
        ax.set_title(f"Mean {self.score_name} and its standard error", fontsize=11)
        self.colorbar_ = None
        if colorbar:
            self.colorbar_ = ax.figure.colorbar(
                self.im_, ax=ax, label=f"Mean {self.score_name}"
            )
        return self

    def _frame(self, ax, row, column):
        """Draw a frame around one cell."""
        from matplotlib.patches import Rectangle

        frame = Rectangle(
            (column - 0.47, row - 0.47),
            0.94,
            0.94,
            fill=False,
            edgecolor="#D55E00",
            linewidth=3,
        )
        return ax.add_patch(frame)


def _cell(score, error):
    """Return the text of a cell."""
    if np.isnan(score):
        return "no score"
    return f"{score:.3f}" if np.isnan(error) else f"{score:.3f}\n± {error:.3f}"


def _check_shape(values, shape, name):
    if values.shape != shape:
        raise InvalidInputError(
            f"{name} must have one row for each of {shape[0]} y_values and one column "
            f"for each of {shape[1]} x_values, got shape {values.shape}."
        )


def _metric(search, metric):
    """Return the name of the score to show; raise if there is no such score."""
    if metric is None:
        metric = search.refit if isinstance(search.refit, str) else "score"
    known = [
        name.removeprefix("mean_test_")
        for name in search.cv_results_
        if name.startswith("mean_test_")
    ]
    if metric not in known:
        raise InvalidInputError(
            f"The search has no score {metric!r}. Pass metric as one of {known}."
        )
    return metric


def _values(results, name):
    """Return the values of a parameter for all candidates, as a list."""
    names = [
        key
        for key in results
        if key.startswith("param_")
        and (key == f"param_{name}" or key.endswith(f"__{name}"))
    ]
    if len(names) != 1:
        known = [key.removeprefix("param_") for key in results if key[:6] == "param_"]
        raise InvalidInputError(
            f"{name!r} is not the name of one parameter of the search, which has "
            f"{known}. Pass two of them as x and y."
        )
    return [_plain(value) for value in results[names[0]]]


def _plain(value):
    """Return a value that can be compared: of arrays and lists their text."""
    if value is np.ma.masked:
        return "default"
    return value.item() if isinstance(value, np.generic) else _hashable(value)


def _hashable(value):
    return str(value) if isinstance(value, list | dict | np.ndarray) else value


def _in_order(values):
    """Return the distinct values: numbers by size, others in their order."""
    distinct = list(dict.fromkeys(values))
    if all(isinstance(value, int | float) for value in distinct):
        return sorted(distinct)
    return distinct
