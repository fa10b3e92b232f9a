"""Measure fitted ensembles in one call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE_INTEGER,
    check_numbers,
    check_seed,
)
from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.evaluation._measures import (
    Key,
    Measured,
    Run,
    as_run,
    measure_predictions,
    weighted_means,
)
from sklearn_sharpbalance.evaluation._resampling import Draws
from sklearn_sharpbalance.evaluation.report import EvaluationReport
from sklearn_sharpbalance.evaluation.robustness import (
    accuracy_by_kind,
    as_ood_sets,
    measure_corruption,
    measure_ood,
    predict_corrupted,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import adaptive_sharpness
from sklearn_sharpbalance.metrics._outputs import last_step, outputs_of, reach_last_step

SHARPNESS_STREAM = 10_000


def evaluate(
    estimators,
    X,
    y,
    *,
    corruptions=None,
    severities=SEVERITIES,
    ood=None,
    sharpness=False,
    X_train=None,
    y_train=None,
    n_bootstrap=1000,
    random_state=0,
    verbose=0,
):
    """Measure accuracy, calibration, diversity, flatness and robustness of ensembles.

    Parameters
    ----------
    estimators : fitted classifier, list of them, or dict
        Methods to measure. A dictionary maps the name of a method to a classifier, or
        to a list of classifiers that differ in their seed. Any classifier with
        ``predict_proba`` can be a baseline; it has no rows about members. Of a
        pipeline or a finished search the classifier inside is used.
    X : array-like
        Test samples, in the form that the estimators accept.
    y : array-like of shape (N,)
        Labels of the test samples.
    corruptions : None, True, str, list or mapping, default=None
        Kinds of corruption, groups of them, or a mapping such as ``CorruptionFiles``,
        as in :func:`corruption_accuracy`. True or "all" measures all kinds, None
        measures none. The report has accuracy, NLL and ECE on corrupted samples by
        severity and in all.
    severities : int or sequence of int, default=(1, 2, 3, 4, 5)
    ood : array-like or dict of str to array-like, default=None
        Out-of-distribution samples, or several sets of them by name.
    sharpness : bool, dict or callable, default=False
        True measures the members' adaptive worst-case sharpness, which is slow. A
        dictionary holds options of
        :func:`~sklearn_sharpbalance.metrics.adaptive_sharpness`. A function
        ``sharpness(estimator, X, y) -> float`` replaces it.
    X_train, y_train : array-likes, default=None
        Samples on which sharpness is measured; ``X`` and ``y`` if None. The paper uses
        training data.
    n_bootstrap : int, default=1000
        Number of bootstrap draws of the samples, for 95 % intervals; 0 leaves them out.
    random_state : int, Generator, RandomState or None, default=0
        Controls corruptions, the batches for sharpness, and the bootstrap.
    verbose : int, default=0
        1 prints a line after each classifier is measured.

    Returns
    -------
    report : EvaluationReport
        Its numbers with ``to_frame()``, ``plot()`` and ``rank()``.

    Notes
    -----
    A bootstrap draw takes the same samples for all methods and seeds, so that methods
    are compared in pairs. For a method with several seeds, mean and interval are those
    of the mean over the seeds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import DeepEnsembleClassifier
    >>> from sklearn_sharpbalance.evaluation import evaluate
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = DeepEnsembleClassifier(max_epochs=5, random_state=0).fit(X[::2], y[::2])
    >>> report = evaluate({"deep": clf}, X[1::2], y[1::2], n_bootstrap=100)
    >>> row = report.row("deep", "accuracy")
    >>> bool(row["low"] <= row["mean"] <= row["high"])
    True
    """
    methods = as_methods(estimators)
    study = Study(
        corruptions=corruptions,
        severities=severities,
        ood=ood,
        sharpness=sharpness,
        n_bootstrap=n_bootstrap,
        random_state=as_seed(random_state),
    )
    names = [name for name, runs in methods.items() for _ in runs]
    classifiers = [estimator for runs in methods.values() for estimator in runs]
    measured = measure_runs(classifiers, X, y, study, X_train=X_train, y_train=y_train)
    results: dict[str, list] = {name: [] for name in methods}
    for name, result in zip(names, measured):
        results[name].append(result)
        if verbose:
            print(f"{name}: measured", flush=True)
    return make_report(results, study)


@dataclass(frozen=True)
class Study:
    """What to measure, by the parameters of :func:`evaluate`."""

    corruptions: Any
    severities: int | Sequence[int]
    ood: Any
    sharpness: bool | Mapping | Callable
    n_bootstrap: int
    random_state: int

    def __post_init__(self) -> None:
        check_numbers(NON_NEGATIVE_INTEGER, n_bootstrap=self.n_bootstrap)
        if isinstance(self.sharpness, Mapping):
            check_sharpness_options(self.sharpness)
        elif not (isinstance(self.sharpness, bool) or callable(self.sharpness)):
            raise InvalidInputError(
                "sharpness must be True, False, a dictionary of options or a function, "
                f"got {self.sharpness!r}."
            )

    @property
    def draws(self) -> Draws:
        return Draws(self.n_bootstrap, self.random_state)

    @property
    def has_corruptions(self) -> bool:
        return self.corruptions is not None and self.corruptions is not False


class RunResult(NamedTuple):
    """Numbers of one classifier on one set of samples."""

    numbers: Run
    corruption: pd.DataFrame | None


def measure_runs(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    study: Study,
    *,
    X_train: Any = None,
    y_train: Any = None,
    stream: int = 0,
) -> Iterator[RunResult]:
    """Measure fitted classifiers on the same samples, one after the other.

    ``stream`` is the index of the set of samples: different sets are drawn
    independently. Sharpness is measured on the training samples, or else on X and y.
    """
    if (X_train is None) != (y_train is None):
        raise InvalidInputError(
            "Sharpness is measured on X_train with y_train: pass both, or neither to "
            "take X and y."
        )
    if X_train is None:
        X_train, y_train = X, y
    corrupted: Sequence[Any] = [None] * len(estimators)
    if study.has_corruptions:
        corrupted = predict_corrupted(
            estimators,
            X,
            y,
            corruptions=study.corruptions,
            severities=study.severities,
            random_state=study.random_state,
        )
    foreign = as_ood_sets(study.ood, X)
    for estimator, sets in zip(estimators, corrupted):
        outputs = outputs_of(estimator, X)
        numbers = measure_predictions(outputs, y, study.draws, stream=stream)
        if study.sharpness is not False:
            numbers |= _measure_sharpness(estimator, X_train, y_train, study, stream)
        if sets is not None:
            numbers |= measure_corruption(sets, study.draws, stream)
        outside = {name: outputs_of(estimator, s) for name, s in foreign.items()}
        numbers |= measure_ood(outputs, outside, study.draws, stream=stream)
        yield RunResult(
            numbers=_without_members(numbers) if outputs.is_lone else numbers,
            corruption=None if sets is None else accuracy_by_kind(sets),
        )


def check_sharpness_options(options: Mapping) -> None:
    """Raise for options that ``adaptive_sharpness`` does not take, before training."""
    known = set(signature(adaptive_sharpness).parameters)
    known -= {"net", "X", "y", "return_batches"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidInputError(
            f"adaptive_sharpness has no option {unknown[0]!r} to set here. Choose from "
            f"{', '.join(map(repr, sorted(known)))}."
        )


def mean_sharpness(sharpness: Callable, estimator: Any, X: Any, y: Any) -> float:
    """Return the mean over the members of a measure ``sharpness(estimator, X, y)``."""
    estimator, X = reach_last_step(estimator, X)
    return float(np.mean(sharpness(estimator, X, y)))


def _without_members(numbers: Run) -> Run:
    """Drop the members' numbers that only repeat those of a single classifier."""
    return {
        key: number
        for key, number in numbers.items()
        if key.part == "ensemble" or key._replace(part="ensemble") not in numbers
    }


def _measure_sharpness(
    estimator: Any, X: Any, y: Any, study: Study, stream: int
) -> Run:
    """Measure the members' mean sharpness; draws are over its batches of samples."""
    key = Key("sharpness", "members")
    if callable(study.sharpness):
        return {key: Measured(mean_sharpness(study.sharpness, estimator, X, y))}
    model, X = reach_last_step(estimator, X)
    nets = getattr(model, "estimators_", [model])
    nets = nets.ravel() if isinstance(nets, np.ndarray) else nets
    if not all(hasattr(net, "module_") for net in nets):
        return {}  # the members have no weights to perturb, as in a forest
    options = dict(study.sharpness) if isinstance(study.sharpness, Mapping) else {}
    options = {"random_state": study.random_state} | options
    values = adaptive_sharpness(model, X, y, return_batches=True, **options)
    values = np.atleast_2d(values).mean(axis=0)  # (n_batches,)
    drawn = study.draws.apply(
        lambda counts: weighted_means(counts, {key: values}),
        (len(values), stream, SHARPNESS_STREAM),
    )
    return as_run(drawn)


def make_report(
    results: Mapping[str, Sequence[RunResult]], study: Study
) -> EvaluationReport:
    """Return the report of all runs of all methods."""
    return EvaluationReport(
        {name: [run.numbers for run in runs] for name, runs in results.items()},
        corruption={
            name: [run.corruption for run in runs if run.corruption is not None]
            for name, runs in results.items()
        },
        random_state=study.random_state,
    )


def as_methods(estimators: Any) -> dict[str, list[Any]]:
    """Return the classifiers of each method by the method's name.

    A single classifier and those of a list are named by their class, with a number if
    several have the same class.
    """
    if isinstance(estimators, Mapping):
        methods = {str(name): _as_list(runs) for name, runs in estimators.items()}
        if len(methods) < len(estimators):
            raise InvalidInputError(
                "Names of methods must differ as text, got "
                f"{', '.join(map(repr, estimators))}."
            )
    else:
        runs = _as_list(estimators)
        kinds = [type(last_step(e)).__name__ for e in runs]
        names = [
            kind if kinds.count(kind) == 1 else f"{kind} {kinds[: i + 1].count(kind)}"
            for i, kind in enumerate(kinds)
        ]
        methods = {name: [run] for name, run in zip(names, runs)}
    empty = [name for name, runs in methods.items() if not runs]
    if not methods or empty:
        of_method = f" for {empty[0]!r}" if empty else ""
        raise InvalidInputError(
            f"There is nothing to evaluate{of_method}. Pass a fitted classifier, a "
            "list of them, or a dictionary of names to one or a list."
        )
    return methods


def _as_list(runs: Any) -> list[Any]:
    return list(runs) if isinstance(runs, (list, tuple)) else [runs]


def as_seed(random_state: Any) -> int:
    """Return a seed that every generator accepts, from any random state."""
    return check_seed(random_state) % 2**32
