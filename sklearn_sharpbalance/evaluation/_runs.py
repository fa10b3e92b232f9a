"""Measure several fitted classifiers on the same samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.evaluation._inputs import as_seed
from sklearn_sharpbalance.evaluation._measures import (
    Key,
    Measured,
    Run,
    as_run,
    measure_predictions,
    weighted_means,
)
from sklearn_sharpbalance.evaluation._resampling import Draws, check_n_bootstrap
from sklearn_sharpbalance.evaluation.corruption import (
    CorruptionAccuracy,
    accuracy_by_kind,
    measure_corruption,
    predict_corrupted,
)
from sklearn_sharpbalance.evaluation.ood import as_foreign_sets, measure_ood
from sklearn_sharpbalance.evaluation.report import EvaluationReport
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    CalibrationBins,
    adaptive_sharpness,
    calibration_curve_bins,
)
from sklearn_sharpbalance.metrics._outputs import outputs_of, reach_last_step
from sklearn_sharpbalance.metrics._tradeoff import (
    check_sharpness_options,
    mean_sharpness,
)

__all__ = ["RunResult", "Study", "check_study", "make_report", "measure_runs"]

SHARPNESS_STREAM = 10_000


class Study(NamedTuple):
    """Settings of the measurements, from :func:`check_study`."""

    corruptions: Any
    severities: int | Sequence[int]
    ood: Any
    sharpness: bool | Mapping | Callable
    draws: Draws
    confidence: float
    random_state: int

    @property
    def has_corruptions(self) -> bool:
        return self.corruptions is not None and self.corruptions is not False


def check_study(
    *,
    corruptions: Any,
    severities: int | Iterable[int],
    ood: Any,
    sharpness: Any,
    n_bootstrap: Any,
    confidence: float,
    random_state: Any,
) -> Study:
    """Return the study that these parameters describe, or raise if one is invalid."""
    if not 0 < confidence < 1:
        raise InvalidInputError(
            f"confidence must be between 0 and 1, got {confidence!r}."
        )
    if isinstance(sharpness, np.bool_):
        sharpness = bool(sharpness)
    if isinstance(sharpness, Mapping):
        check_sharpness_options(sharpness)
    elif not (isinstance(sharpness, bool) or callable(sharpness)):
        raise InvalidInputError(
            "sharpness must be True, False, a dictionary of options or a function, got "
            f"{sharpness!r}."
        )
    seed = as_seed(random_state)
    return Study(
        corruptions=_as_reusable(corruptions),
        severities=_as_reusable(severities),
        ood=ood,
        sharpness=sharpness,
        draws=Draws(check_n_bootstrap(n_bootstrap), seed),
        confidence=confidence,
        random_state=seed,
    )


def _as_reusable(values: Any) -> Any:
    """Return a list in place of an iterator: every fold reads the values."""
    return list(values) if isinstance(values, Iterator) else values


class RunResult(NamedTuple):
    """Numbers of one classifier on one set of samples."""

    numbers: Run
    calibration: CalibrationBins
    corruption: CorruptionAccuracy | None


def measure_runs(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    study: Study,
    *,
    X_train: Any = None,
    y_train: Any = None,
    stream: int = 0,
    names: Sequence[str] | None = None,
) -> list[RunResult]:
    """Measure fitted classifiers on the same samples.

    Parameters
    ----------
    estimators : sequence of fitted classifiers
    X, y : array-likes
    study : Study
    X_train, y_train : array-likes, default=None
        Samples on which sharpness is measured; ``X`` and ``y`` if None.
    stream : int, default=0
        Index of the set of samples, so that different sets are drawn independently.
    names : sequence of str, default=None
        Print a line with the name of a classifier after it is measured.
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
    foreign = as_foreign_sets(study.ood, X)
    results = []
    for estimator, sets in zip(estimators, corrupted):
        outputs = outputs_of(estimator, X)
        numbers = measure_predictions(outputs, y, study.draws, stream=stream)
        if study.sharpness is not False:
            numbers |= _measure_sharpness(
                estimator, X_train, y_train, study=study, stream=stream
            )
        accuracy = None
        if sets is not None:
            numbers |= measure_corruption(sets, study.draws, stream)
            accuracy = accuracy_by_kind(sets)
        if foreign:
            outside = {name: outputs_of(estimator, s) for name, s in foreign.items()}
            numbers |= measure_ood(outputs, outside, study.draws, stream=stream)
        if outputs.is_lone:
            numbers = _without_members(numbers)
        bins = calibration_curve_bins(outputs.codes(y), outputs.proba)
        results.append(RunResult(numbers, bins, accuracy))
        if names is not None:
            print(f"{names[len(results) - 1]}: measured", flush=True)
    return results


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
        value = mean_sharpness(
            estimator, X, y, study.sharpness, random_state=study.random_state
        )
        return {key: Measured(value)}
    model, X = reach_last_step(estimator, X)
    nets = getattr(model, "estimators_", [model])
    nets = nets.ravel() if isinstance(nets, np.ndarray) else nets
    if not all(hasattr(net, "module_") for net in nets):
        return {}  # the members have no weights to perturb, as in a forest
    options = dict(study.sharpness) if isinstance(study.sharpness, Mapping) else {}
    options = {"random_state": study.random_state} | options
    values = adaptive_sharpness(model, X, y, return_batches=True, **options)
    values = np.atleast_2d(values).mean(axis=0)  # (n_batches,)
    return as_run(
        study.draws.apply(
            lambda counts: weighted_means(counts, {key: values}),
            len(values),
            stream,
            SHARPNESS_STREAM,
        )
    )


def make_report(
    results: Mapping[str, Sequence[RunResult]], n_samples: int, study: Study
) -> EvaluationReport:
    """Return the report of all runs of all methods."""
    corruption = {
        name: [run.corruption for run in runs if run.corruption is not None]
        for name, runs in results.items()
    }
    return EvaluationReport(
        {name: [run.numbers for run in runs] for name, runs in results.items()},
        n_samples=n_samples,
        confidence=study.confidence,
        calibration={
            name: _pooled([run.calibration for run in runs])
            for name, runs in results.items()
        },
        corruption=corruption if any(corruption.values()) else None,
        random_state=study.random_state,
    )


def _pooled(bins: Sequence[CalibrationBins]) -> CalibrationBins:
    """Return the bins of the predictions of all runs together."""
    counts = np.stack([b.counts for b in bins])  # (R, n_bins)
    confidence = np.stack([b.confidence for b in bins])
    accuracy = np.stack([b.accuracy for b in bins])
    total = counts.sum(axis=0)
    divisor = np.maximum(total, 1)
    return CalibrationBins(
        counts=total,
        confidence=(counts * confidence).sum(axis=0) / divisor,
        accuracy=(counts * accuracy).sum(axis=0) / divisor,
        edges=bins[0].edges,
    )
