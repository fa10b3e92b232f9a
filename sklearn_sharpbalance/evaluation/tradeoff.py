"""A parameter study: sharpness and diversity as functions of rho and others."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from sklearn_sharpbalance.data.training_data import n_rows
from sklearn_sharpbalance.evaluation.compare import as_seeds, clone_with_seed, take
from sklearn_sharpbalance.evaluation.evaluate import (
    as_seed,
    check_sharpness_options,
    mean_sharpness,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    adaptive_sharpness,
    disagreement,
    disagreement_error_ratio,
    ensemble_improvement_rate,
    kl_diversity,
    variance_diversity,
)
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.training.display import Steps


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
    random_state=0,
    verbose=0,
):
    """Train with several rho, and measure sharpness, diversity and accuracy.

    Parameters
    ----------
    estimator : SharpBalanceEnsembleClassifier, or another with ``rho``
        Unfitted estimator, which is cloned; it may be the last step of a pipeline.
        ``selection="all"`` studies SAM ensembles, as the paper's figures 3 to 5 do.
    X, y : array-likes
        Training samples, on which sharpness is measured.
    rho : sequence of float
        Radii to train with.
    X_test, y_test : array-likes, default=None
        Samples on which diversity and accuracy are measured; the paper uses corrupted
        test data. None takes a stratified quarter of ``X``.
    other : dict of str to sequence, default=None
        Other parameters and their values, such as
        ``{"estimator__module__width": [1, 2]}``; all combinations are trained.
    seeds : int or sequence of int, default=1
        Number of trainings of each setting, or the ``random_state`` of each.
    sharpness : callable, dict or None, default=None
        ``sharpness(estimator, X, y) -> float``. None is
        :func:`~sklearn_sharpbalance.metrics.adaptive_sharpness`; a dictionary holds
        options of it.
    random_state : int, Generator, RandomState or None, default=0
        Controls seeds, the test samples, and the batches for sharpness.
    verbose : int, default=0
        1 prints a line before each training, with the time left.

    Returns
    -------
    curve : DataFrame
        One row for each training, with the columns ``rho``, the other parameters by
        name, ``seed``, ``sharpness``, the diversities ``disagreement_error_ratio``,
        ``disagreement``, ``variance_diversity`` and ``kl_diversity``, and
        ``improvement``, ``member_accuracy`` and ``ensemble_accuracy``.
        :class:`~sklearn_sharpbalance.plotting.TradeoffDisplay` draws two of them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> from sklearn_sharpbalance.evaluation import tradeoff_curve
    >>> X, y = load_iris(return_X_y=True)
    >>> sam = SharpBalanceEnsembleClassifier(selection="all", max_epochs=3)
    >>> curve = tradeoff_curve(sam, X, y, rho=[0.05, 0.5], sharpness={"n_batches": 2})
    >>> curve[["rho", "sharpness"]].shape
    (2, 2)
    """
    seed = as_seed(random_state)
    X, y, X_test, y_test = _train_and_test(X, y, X_test, y_test, seed)
    rho_name = _name_of_rho(estimator)
    grid = _as_grid(rho, other or {}, rho_name)
    measure = _sharpness_measure(sharpness, seed)
    # rho changes fastest, apart from the seed.
    runs = list(product(*reversed(grid.values()), as_seeds(seeds, seed)))
    rows, steps = [], Steps(len(runs), show=verbose)
    for *values, run_seed in runs:
        setting = dict(zip(grid, reversed(values)))
        described = ", ".join(f"{name}={v!r}" for name, v in setting.items())
        steps.begin(f"{described}, seed={run_seed}")
        params = {rho_name if k == "rho" else k: v for k, v in setting.items()}
        fitted = clone_with_seed(clone(estimator).set_params(**params), run_seed)
        fitted.fit(X, y)
        row = {**setting, "seed": run_seed}
        row["sharpness"] = mean_sharpness(measure, fitted, X, y)
        rows.append(row | _measure(fitted, X_test, y_test))
    return pd.DataFrame(rows, dtype=object).infer_objects()  # keeps None


def _train_and_test(X: Any, y: Any, X_test: Any, y_test: Any, seed: int) -> tuple:
    """Return X, y, X_test and y_test; without test samples, split some off."""
    if (X_test is None) != (y_test is None):
        raise InvalidInputError("Pass both X_test and y_test, or neither.")
    for name, samples, labels in (("", X, y), ("_test", X_test, y_test)):
        if samples is not None and len(labels) != n_rows(samples):
            raise InvalidInputError(
                f"X{name} has {n_rows(samples)} samples, y{name} has {len(labels)}."
            )
    if X_test is not None:
        return X, y, X_test, y_test
    train, test = train_test_split(
        np.arange(len(y)), test_size=0.25, stratify=y, random_state=seed
    )
    y = np.asarray(y)
    return take(X, train), y[train], take(X, test), y[test]


def _name_of_rho(estimator: Any) -> str:
    """Return the name of the parameter rho; in a pipeline that of the last step."""
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


def _as_grid(rho: Any, other: Mapping[str, Any], rho_name: str) -> dict[str, list]:
    """Return the values of each parameter, or raise if they cannot be trained with."""
    for name in other:
        if name in ("rho", rho_name) or name.endswith("random_state"):
            raise InvalidInputError(
                f"other varies {name!r}. Pass rho= or seeds= instead."
            )
    grid = {}
    for name, values in {"rho": rho, **other}.items():
        is_sequence = np.iterable(values) and not isinstance(values, str)
        grid[name] = list(values) if is_sequence else []
        if not grid[name]:
            raise InvalidInputError(
                f"{name} must be a sequence of at least one value to train with, such "
                f"as [0.1, 0.2], got {values!r}."
            )
    return grid


def _sharpness_measure(sharpness: Any, seed: int) -> Callable:
    """Return a function of (estimator, X, y)."""
    sharpness = {} if sharpness is None else sharpness
    if isinstance(sharpness, Mapping):
        check_sharpness_options(sharpness)
        options = {"random_state": seed} | dict(sharpness)
        return partial(adaptive_sharpness, **options)
    if not callable(sharpness):
        raise InvalidInputError(
            "sharpness must be None, a dictionary of options or a function, got "
            f"{sharpness!r}."
        )
    return sharpness


def _measure(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    """Return diversity, improvement and accuracy of a fitted ensemble."""
    outputs = outputs_of(estimator, X)
    codes, probas = outputs.codes(y), outputs.member_probas
    return {
        "disagreement_error_ratio": disagreement_error_ratio(codes, probas),
        "disagreement": disagreement(probas),
        "variance_diversity": variance_diversity(probas),
        "kl_diversity": kl_diversity(probas),
        "improvement": ensemble_improvement_rate(
            codes, probas, ensemble_proba=outputs.proba
        ),
        "member_accuracy": float((probas.argmax(-1) == codes).mean()),
        "ensemble_accuracy": float((outputs.proba.argmax(-1) == codes).mean()),
    }
