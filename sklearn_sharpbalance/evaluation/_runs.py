"""Measuring several fitted classifiers on the same samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.corruption._random import resolve_seed
from sklearn_sharpbalance.evaluation._corrupted import (
    measure_corruption,
    predict_corrupted,
)
from sklearn_sharpbalance.evaluation._measures import (
    Key,
    Measured,
    Run,
    measure_predictions,
)
from sklearn_sharpbalance.evaluation._resampling import Draws
from sklearn_sharpbalance.evaluation.corruption import (
    CorruptionAccuracy,
    accuracy_of,
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

__all__ = ["RunResult", "Study", "as_seed", "make_report", "measure_runs"]

SHARPNESS_STREAM = 10_000


@dataclass(frozen=True)
class Study:
    """What is measured, and how."""

    corruptions: Any = None
    severities: Sequence[int] = SEVERITIES
    ood: Any = None
    sharpness: bool | Mapping | Callable = False
    confidence: float = 0.95
    random_state: int = 0

    def __post_init__(self):
        if not 0 < self.confidence < 1:
            raise InvalidInputError(
                f"confidence must lie between 0 and 1, got {self.confidence!r}."
            )
        for name in ("corruptions", "severities"):  # every fold reads them
            if isinstance(getattr(self, name), Iterator):
                object.__setattr__(self, name, list(getattr(self, name)))
        if isinstance(self.sharpness, np.bool_):
            object.__setattr__(self, "sharpness", bool(self.sharpness))
        if isinstance(self.sharpness, Mapping):
            check_sharpness_options(self.sharpness)
        elif not (isinstance(self.sharpness, bool) or callable(self.sharpness)):
            raise InvalidInputError(
                "sharpness must be True, False, a dictionary of options or a function, "
                f"got {self.sharpness!r}."
            )

    @property
    def has_corruptions(self) -> bool:
        return self.corruptions is not None and self.corruptions is not False


class RunResult(NamedTuple):
    """One classifier on one set of samples."""

    numbers: Run
    calibration: CalibrationBins
    corruption: CorruptionAccuracy | None


def as_seed(random_state: Any) -> int:
    """A seed that every generator takes, from anything that can be a random state."""
    return resolve_seed(random_state) % 2**32


def measure_runs(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    study: Study,
    draws: Draws,
    *,
    X_train: Any = None,
    y_train: Any = None,
    stream: int = 0,
) -> list[RunResult]:
    """Measure fitted classifiers on the same samples.

    Parameters
    ----------
    estimators : sequence of fitted classifiers
    X, y : array-likes
    study : Study
    draws : Draws
    X_train, y_train : array-likes, default=None
        Where sharpness is measured; ``X`` and ``y`` if None.
    stream : int, default=0
        Which set of samples it is, so that different sets are drawn independently.
    """
    corrupted: Sequence[Any] = [None] * len(estimators)
    if study.has_corruptions:
        seed = study.random_state
        corrupted = predict_corrupted(
            estimators, X, y, study.corruptions, study.severities, seed
        )
    foreign = as_foreign_sets(study.ood, X)
    if (X_train is None) != (y_train is None):
        raise InvalidInputError(
            "Sharpness is measured on X_train with y_train: pass both, or neither to "
            "take X and y."
        )
    X_train, y_train = (X, y) if X_train is None else (X_train, y_train)
    results = []
    for estimator, sets in zip(estimators, corrupted):
        outputs = outputs_of(estimator, X)
        numbers = measure_predictions(outputs, y, draws, stream)
        if study.sharpness is not False:
            numbers |= _measure_sharpness(
                estimator, X_train, y_train, study, draws, stream
            )
        if sets is not None:
            numbers |= measure_corruption(sets, draws, stream)
        if foreign:
            outside = {name: outputs_of(estimator, s) for name, s in foreign.items()}
            numbers |= measure_ood(outputs, outside, draws, stream)
        if outputs.is_lone:
            numbers = _without_members(numbers)
        bins = calibration_curve_bins(outputs.codes(y), outputs.proba)
        accuracy = None if sets is None else accuracy_of(sets)
        results.append(RunResult(numbers, bins, accuracy))
    return results


def _without_members(numbers: Run) -> Run:
    """Without what would only say twice what the classifier itself is."""
    return {
        key: number
        for key, number in numbers.items()
        if key.part == "ensemble" or key._replace(part="ensemble") not in numbers
    }


def _measure_sharpness(
    estimator: Any, X: Any, y: Any, study: Study, draws: Draws, stream: int
) -> Run:
    """Mean sharpness of the members; draws are over the batches it is measured on."""
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
        return {}  # a forest has no weights to perturb
    options = dict(study.sharpness) if isinstance(study.sharpness, Mapping) else {}
    options = {"random_state": study.random_state} | options
    values = adaptive_sharpness(model, X, y, return_batches=True, **options)
    values = np.atleast_2d(values).mean(axis=0)  # (n_batches,)
    sampled = draws.means(values[:, None], stream, SHARPNESS_STREAM)[:, 0]
    return {key: Measured(float(values.mean()), sampled if len(sampled) else None)}


def make_report(
    results: Mapping[str, Sequence[RunResult]], n_samples: int, study: Study
) -> EvaluationReport:
    """The report of all runs of all methods."""
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
    """Bins of the predictions of all runs together."""
    counts = np.stack([b.counts for b in bins])  # (R, n_bins)
    total = counts.sum(axis=0)
    divisor = np.maximum(total, 1)
    return CalibrationBins(
        total,
        (counts * np.stack([b.confidence for b in bins])).sum(axis=0) / divisor,
        (counts * np.stack([b.accuracy for b in bins])).sum(axis=0) / divisor,
        bins[0].edges,
    )
