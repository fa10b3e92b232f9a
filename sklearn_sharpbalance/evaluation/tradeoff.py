"""A parameter study: sharpness and diversity as rho, and another parameter, change."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.data.training_data import n_rows
from sklearn_sharpbalance.evaluation._runs import as_seed
from sklearn_sharpbalance.evaluation._table import Table
from sklearn_sharpbalance.evaluation._training import as_seeds, seeded, take
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.metrics._tradeoff import (
    DIVERSITIES,
    GAINS,
    check_sharpness_options,
    diversity_of,
    gain_of,
    mean_sharpness,
    sharpness_label,
)
from sklearn_sharpbalance.plotting import TradeoffDisplay

__all__ = ["TradeoffCurve", "tradeoff_curve"]

MEASURES = ("sharpness", *DIVERSITIES, *GAINS)


class TradeoffCurve(Table):
    """What :func:`tradeoff_curve` found.

    As a mapping: columns ``rho``, the other parameters by name, ``seed``,
    ``sharpness``, the diversities ``disagreement_error_ratio``, ``disagreement``,
    ``variance_diversity`` and ``kl_diversity``, and ``improvement``,
    ``member_accuracy`` and ``ensemble_accuracy``; one row for each training.

    Parameters
    ----------
    columns : mapping of str to array-like
    parameters : sequence of str, default=("rho",)
        Names of the columns that were varied; rho comes first.
    sharpness_name : str
        Label of the measure of sharpness.
    """

    def __init__(
        self,
        columns,
        *,
        parameters=("rho",),
        sharpness_name="Adaptive worst-case sharpness",
    ):
        super().__init__(columns)
        self.parameters = tuple(parameters)
        self.sharpness_name = sharpness_name

    def mean(self):
        """The same table with the mean over seeds.

        Returns
        -------
        curve : TradeoffCurve
            One row for each setting, without the column ``seed``.
        """
        values = zip(*(self[name].tolist() for name in self.parameters))
        settings = [repr(setting) for setting in values]
        first = [settings.index(setting) for setting in dict.fromkeys(settings)]
        rows = [
            [i for i, other in enumerate(settings) if other == settings[k]]
            for k in first
        ]
        columns = {name: self[name][first] for name in self.parameters}
        columns |= {
            name: np.array([self[name][same].mean() for same in rows])
            for name in MEASURES
        }
        return TradeoffCurve(
            columns, parameters=self.parameters, sharpness_name=self.sharpness_name
        )

    def display(
        self,
        ax=None,
        *,
        diversity="disagreement_error_ratio",
        color="improvement",
        average=True,
        **kwargs,
    ):
        """Draw sharpness against diversity, a group for each other setting.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        diversity : str, default="disagreement_error_ratio"
            Column of the vertical axis.
        color : str or None, default="improvement"
            Column that colours the points.
        average : bool, default=True
            One point for the mean over seeds; False draws each training.
        **kwargs
            Passed to :meth:`~sklearn_sharpbalance.plotting.TradeoffDisplay.plot`.

        Returns
        -------
        display : TradeoffDisplay
            Its ``fits_`` hold the slope of each group.
        """
        _check_choice("diversity", diversity, DIVERSITIES)
        if color is not None:
            _check_choice("color", color, GAINS)
        curve = self.mean() if average else self
        display = TradeoffDisplay(
            curve["sharpness"],
            curve[diversity],
            color=None if color is None else curve[color],
            labels=[_short(rho) for rho in curve["rho"]],
            groups=curve._groups(),
            sharpness_name=self.sharpness_name,
            diversity_name=DIVERSITIES[diversity][0],
            color_name=None if color is None else GAINS[color],
        )
        return display.plot(ax, **kwargs)

    def _groups(self) -> list[str] | None:
        others = self.parameters[1:]
        if not others:
            return None
        return [
            ", ".join(
                f"{name.split('__')[-1]} {_short(self[name][i])}" for name in others
            )
            for i in range(self.n_rows)
        ]


def tradeoff_curve(
    estimator,
    X,
    y,
    *,
    rho,
    X_test=None,
    y_test=None,
    other=None,
    seeds=1,
    sharpness=None,
    sharpness_name=None,
    random_state=0,
    verbose=0,
):
    """Train over rho, and measure flatness, diversity and accuracy each time.

    Parameters
    ----------
    estimator : SharpBalanceEnsembleClassifier, or another with ``rho``
        Unfitted; it is cloned, and may be the last step of a pipeline.
        ``selection="all"`` studies SAM ensembles, as the paper's figures 3 to 5 do.
    X, y : array-likes
        Training samples, on which sharpness is measured.
    rho : sequence of float
        Radii to train with.
    X_test, y_test : array-likes, default=None
        Where diversity and accuracy are measured; the paper takes corrupted test
        data. None holds out a stratified quarter of ``X``.
    other : dict of str to sequence, default=None
        Other parameters and their values, such as
        ``{"estimator__module__width": [1, 2]}``; all combinations are trained.
    seeds : int or sequence of int, default=1
        Trainings of each setting: their number, or the ``random_state`` of each.
    sharpness : callable, dict or None, default=None
        ``sharpness(estimator, X, y) -> float``; a dictionary holds options of
        :func:`~sklearn_sharpbalance.metrics.adaptive_sharpness`, which None takes.
    sharpness_name : str, default=None
        Label of that axis.
    random_state : int, Generator, RandomState or None, default=0
        Draws seeds, the held-out part, and batches for sharpness.
    verbose : int, default=0
        1 prints a line for each training.

    Returns
    -------
    curve : TradeoffCurve
        A table with ``to_frame()``, and a figure by ``display()``.

    References
    ----------
    .. [1] H. Lu et al. (2024). Sharpness-diversity tradeoff: improving flat ensembles
       with SharpBalance. NeurIPS. Figures 1c, 3, 4 and 5.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> from sklearn_sharpbalance.evaluation import tradeoff_curve
    >>> X, y = load_iris(return_X_y=True)
    >>> sam = SharpBalanceEnsembleClassifier(selection="all", max_epochs=3)
    >>> curve = tradeoff_curve(sam, X, y, rho=[0.05, 0.5], sharpness={"n_batches": 2})
    >>> curve["rho"], curve["sharpness"].shape
    (array([0.05, 0.5 ]), (2,))
    """
    seed = as_seed(random_state)
    if len(y) != n_rows(X):
        raise InvalidInputError(f"X has {n_rows(X)} samples, y has {len(y)}.")
    if X_test is None and y_test is not None:
        raise InvalidInputError("y_test was passed without X_test. Pass its samples.")
    if X_test is None:
        train, test = train_test_split(
            np.arange(len(y)), test_size=0.25, stratify=y, random_state=seed
        )
        y = np.asarray(y)
        X, X_test, y, y_test = take(X, train), take(X, test), y[train], y[test]
    elif y_test is None:
        raise InvalidInputError("X_test was passed without y_test. Pass its labels.")
    elif len(y_test) != n_rows(X_test):
        raise InvalidInputError(
            f"X_test has {n_rows(X_test)} samples, y_test has {len(y_test)}."
        )
    radius = _name_of_rho(estimator)
    grid = _as_grid({"rho": rho, **_check_other(other, radius)})
    measure, name = _sharpness_measure(sharpness, sharpness_name, seed)
    rows = []
    for setting, run_seed in _settings(grid, as_seeds(seeds, seed)):
        if verbose:
            print(
                ", ".join(f"{k}={v!r}" for k, v in setting.items()), f"seed={run_seed}"
            )
        params = {radius if k == "rho" else k: v for k, v in setting.items()}
        fitted = seeded(clone(estimator).set_params(**params), run_seed).fit(X, y)
        found = {"sharpness": mean_sharpness(fitted, X, y, measure, seed)}
        rows.append(
            setting | {"seed": run_seed} | found | _measure(fitted, X_test, y_test)
        )
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return TradeoffCurve(columns, parameters=list(grid), sharpness_name=name)


def _name_of_rho(estimator: Any) -> str:
    """The parameter; in a pipeline that of the last step."""
    name, last = "rho", estimator
    while isinstance(last, Pipeline):
        step, last = last.steps[-1]
        name = name.removesuffix("rho") + f"{step}__rho"
    if "rho" not in last.get_params(deep=False):
        raise InvalidInputError(
            f"{type(last).__name__} has no parameter rho to vary. Pass a "
            "SharpBalanceEnsembleClassifier; selection='all' is a SAM ensemble."
        )
    return name


def _as_grid(values: Mapping[str, Any]) -> dict[str, list]:
    """Values of each parameter as a list, which is not empty."""
    for name, own in values.items():
        if isinstance(own, str) or not isinstance(own, Iterable):
            raise InvalidInputError(
                f"{name} must be a sequence of values to train with, got {own!r}. Pass "
                f"[{own!r}]."
            )
    grid = {name: list(own) for name, own in values.items()}
    for name, own in grid.items():
        if not own:
            raise InvalidInputError(f"{name} has no values to train with.")
    return grid


def _settings(
    grid: Mapping[str, Sequence], seeds: Sequence[int]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Every combination of values with every seed; rho changes fastest."""
    names = list(grid)[::-1]
    for values in product(*(grid[name] for name in names)):
        setting = dict(zip(names, values))
        for seed in seeds:
            yield {name: setting[name] for name in grid}, seed


def _check_other(
    other: Mapping[str, Sequence] | None, radius: str
) -> dict[str, Sequence]:
    """Other parameters; those that would be set twice are refused."""
    for name in other or {}:
        is_seed = name.rpartition("__")[2] == "random_state"
        if is_seed or name in ("rho", radius):
            raise InvalidInputError(
                f"other varies {name!r}. Pass {'seeds' if is_seed else 'rho'}= instead."
            )
    return dict(other or {})


def _sharpness_measure(sharpness: Any, name: str | None, seed: int) -> tuple[Any, str]:
    """A function of (estimator, X, y), or None for the default, and its label."""
    if isinstance(sharpness, Mapping):
        check_sharpness_options(sharpness)
        options = {"random_state": seed} | dict(sharpness)

        def measure(estimator, X, y):
            return metrics.adaptive_sharpness(estimator, X, y, **options)

        return measure, name or sharpness_label(None)
    if sharpness is not None and not callable(sharpness):
        raise InvalidInputError(
            "sharpness must be None, a dictionary of options or a function, got "
            f"{sharpness!r}."
        )
    return sharpness, name or sharpness_label(sharpness)


def _measure(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    """Diversity, improvement and accuracy of a fitted ensemble."""
    outputs = outputs_of(estimator, X)
    codes, probas = outputs.codes(y), outputs.member_probas
    spread = {name: diversity_of(name, codes, probas) for name in DIVERSITIES}
    gains = {name: gain_of(name, codes, probas, outputs.proba) for name in GAINS}
    return spread | gains


def _check_choice(what: str, value: str, choices: Mapping[str, Any]) -> None:
    if value not in choices:
        raise InvalidInputError(
            f"Unknown {what} {value!r}. Choose one of {', '.join(map(repr, choices))}."
        )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)
