"""Scores of a search over two parameters, as a heat map."""

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import GREY, SEQUENTIAL, Display


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
    colorbar_ : matplotlib Colorbar

    Examples
    --------
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
    def from_estimator(cls, search, *, x="flat_ratio", y="rho", metric=None, **kwargs):
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
        **kwargs
            Passed to :meth:`plot`.
        """
        check_is_fitted(search, "cv_results_")
        results = search.cv_results_
        metric = _metric(search, metric)
        found = pd.DataFrame(
            {
                "x": _values(results, x),
                "y": _values(results, y),
                "score": results[f"mean_test_{metric}"],
                "error": _standard_errors(results, metric),
            }
        )
        x_values, y_values = _in_order(found["x"]), _in_order(found["y"])
        best_of_pair = found.sort_values("score", na_position="first", kind="stable")
        best_of_pair = best_of_pair.drop_duplicates(["x", "y"], keep="last")
        tables = best_of_pair.pivot(index="y", columns="x")
        scores, errors = (
            tables[name].reindex(index=y_values, columns=x_values).to_numpy(float)
            for name in ("score", "error")
        )
        best = None
        if hasattr(search, "best_index_"):
            chosen = found.loc[search.best_index_]
            best = y_values.index(chosen["y"]), x_values.index(chosen["x"])
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
        return display.plot(**kwargs)

    def plot(self, ax=None):
        """Draw the heat map.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        """
        shape = (len(self.y_values), len(self.x_values))
        scores = _checked(self.scores, shape, "scores")
        errors = np.full(shape, np.nan)
        if self.standard_errors is not None:
            errors = _checked(self.standard_errors, shape, "standard_errors")
        size = (max(4.6, 1.6 + shape[1]), max(3.6, 1.2 + 0.8 * shape[0]))
        ax = self._start(ax, size)
        label = f"Mean {self.score_name}"
        look = {"cmap": SEQUENTIAL, "aspect": "auto", "origin": "lower"}
        self.im_ = ax.imshow(scores, **look)
        self.text_ = np.empty(shape, dtype=object)
        for (row, column), score in np.ndenumerate(scores):
            self.text_[row, column] = ax.text(
                column,
                row,
                _cell(score, errors[row, column]),
                ha="center",
                va="center",
                fontsize=9 if shape[1] <= 6 else 8,
                color=GREY if np.isnan(score) else _text_colour(self.im_, score),
            )
        self.colorbar_ = ax.figure.colorbar(self.im_, ax=ax, label=label)
        self.best_ = None if self.best is None else _draw_frame(ax, *self.best)
        ax.set_xticks(range(shape[1]), [f"{value}" for value in self.x_values])
        ax.set_yticks(range(shape[0]), [f"{value}" for value in self.y_values])
        ax.set(xlabel=self.x_name, ylabel=self.y_name)
        ax.set_title(f"{label} and its standard error", fontsize=11)
        return self


def _text_colour(image, value):
    """Return black or white, whichever is readable on the colour of a value."""
    red, green, blue, _ = image.cmap(image.norm(value))
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    return "black" if is_light else "white"


def _draw_frame(ax, row, column):
    """Draw a frame around one cell."""
    from matplotlib.patches import Rectangle

    frame = Rectangle((column - 0.47, row - 0.47), 0.94, 0.94)
    frame.set(fill=False, edgecolor="#D55E00", linewidth=3)
    return ax.add_patch(frame)


def _cell(score, error):
    """Return the text of a cell."""
    if np.isnan(score):
        return "no score"
    return f"{score:.3f}" if np.isnan(error) else f"{score:.3f}\n± {error:.3f}"


def _checked(values, shape, name):
    """Return an array of this shape, or raise."""
    array = np.asarray(values, dtype=float)
    if array.shape != shape:
        raise InvalidInputError(
            f"{name} must have one row for each of {shape[0]} y_values and one column "
            f"for each of {shape[1]} x_values, got shape {array.shape}."
        )
    return array


def _names(results, prefix):
    """Return the columns of results with a prefix, without it."""
    return [key.removeprefix(prefix) for key in results if key.startswith(prefix)]


def _metric(search, metric):
    """Return the name of the score to show; raise if there is no such score."""
    if metric is None:
        metric = search.refit if isinstance(search.refit, str) else "score"
    known = _names(search.cv_results_, "mean_test_")
    if metric not in known:
        raise InvalidInputError(
            f"The search has no score {metric!r}. Pass metric as one of {known}."
        )
    return metric


def _standard_errors(results, metric):
    """Return the standard error of each mean over the folds; NaN for one fold."""
    n_splits = sum(key.endswith(f"_test_{metric}") for key in _names(results, "split"))
    if n_splits < 2:
        return np.nan
    return results[f"std_test_{metric}"] / np.sqrt(n_splits - 1)


def _values(results, name):
    """Return the values of a parameter for all candidates, as a list."""
    known = _names(results, "param_")
    found = [key for key in known if key == name or key.endswith(f"__{name}")]
    if len(found) != 1:
        raise InvalidInputError(
            f"{name!r} is not the name of one parameter of the search, which has "
            f"{known}. Pass two of them as x and y."
        )
    return [_plain(value) for value in results[f"param_{found[0]}"]]


def _plain(value):
    """Return a value that can be compared: of others their text."""
    if value is np.ma.masked:
        return "default"
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, int | float | str) else str(value)


def _in_order(values):
    """Return the distinct values: numbers by size, others in their order."""
    distinct = values.drop_duplicates().tolist()
    return sorted(distinct) if pd.api.types.is_numeric_dtype(values) else distinct
