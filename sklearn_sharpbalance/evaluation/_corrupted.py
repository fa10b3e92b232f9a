"""What is kept of predictions on corrupted samples, and the numbers made of it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.evaluation._measures import (
    Key,
    Measured,
    Run,
    claims,
    sample_nll,
)
from sklearn_sharpbalance.evaluation._methods import check_arrays
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_ece
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._corrupted import corrupted_sets, iter_outputs

__all__ = ["CorruptedSet", "measure_corruption", "predict_corrupted"]

METRICS = ("corrupted_accuracy", "corrupted_nll", "corrupted_ece")
PARTS = ("members", "ensemble")


class CorruptedSet(NamedTuple):
    """One corrupted set; the members come first, the ensemble last."""

    kind: str
    severity: int
    right: np.ndarray  # (M + 1, N) bool
    confidence: np.ndarray  # (M + 1, N)
    nll: np.ndarray  # (M + 1, N)
    rows: np.ndarray | None = None  # (N,) of the clean samples, if drawn anew

    @property
    def n_samples(self) -> int:
        return self.right.shape[1]

    def by_sample(self) -> np.ndarray:
        """What averages over samples: accuracy and NLL of members and ensemble."""
        return np.stack([_parts(self.right), _parts(self.nll)])  # (2, 2, N)

    def ece(self, counts: np.ndarray) -> np.ndarray:
        """Calibration error (2, B) of members and ensemble under counts (B, N)."""
        pairs = zip(self.confidence, self.right)
        return _parts(np.stack([weighted_ece(counts, *pair) for pair in pairs]))

    def counts(self, of_clean: np.ndarray) -> np.ndarray:
        """Counts (B, N) of its samples; copies of a clean sample are drawn together."""
        if self.rows is None:
            return of_clean
        counts = of_clean[:, self.rows]
        drawn = counts.sum(axis=1, keepdims=True)
        return counts * (counts.shape[1] / np.maximum(drawn, 1))


def _parts(values: np.ndarray) -> np.ndarray:
    """Mean of the members and the ensemble, (2, ...), of values (M + 1, ...)."""
    return np.stack([values[:-1].mean(axis=0), values[-1]])


def predict_corrupted(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    corruptions: Any,
    severities: int | Iterable[int],
    random_state: Any,
) -> list[list[CorruptedSet]]:
    """Corrupted sets of each estimator; every set is made once for all of them."""
    check_arrays(X, "Corrupting samples")
    sets = corrupted_sets(X, y, corruptions, severities, random_state)
    result: list[list[CorruptedSet]] = [[] for _ in estimators]
    for data, every in iter_outputs(estimators, sets):
        for kept, (outputs, codes) in zip(result, every):
            predictors = [*outputs.member_probas, outputs.proba]
            confidence, right = zip(*(claims(proba, codes) for proba in predictors))
            nll = [sample_nll(proba, codes) for proba in predictors]
            kept.append(
                CorruptedSet(
                    *(data.kind, data.severity),
                    right=np.stack(right),
                    confidence=np.stack(confidence),
                    nll=np.stack(nll),
                    rows=data.rows,
                )
            )
    if not result or not result[0]:
        raise InvalidInputError(
            f"There is nothing to measure: corruptions={corruptions!r} at severities "
            f"{severities!r} make no corrupted set."
        )
    return result


def measure_corruption(sets: list[CorruptedSet], draws: Draws, stream: int = 0) -> Run:
    """Accuracy and calibration in all and by severity, with bootstrap draws."""
    severities = list(dict.fromkeys(s.severity for s in sets))
    values = _by_severity(sets, severities, _once)[..., 0]  # (3, 2, S)
    sampled = None
    if draws.n_draws:
        sampled = _by_severity(sets, severities, lambda n: draws.blocks(n, stream))
    run: Run = {}
    for m, metric in enumerate(METRICS):
        for p, part in enumerate(PARTS):
            every = None if sampled is None else sampled[m, p].mean(axis=0)
            run[Key(metric, part)] = Measured(float(values[m, p].mean()), every)
            for s, severity in enumerate(severities):
                one = None if sampled is None else sampled[m, p, s]
                key = Key(metric, part, f"severity {severity}")
                run[key] = Measured(float(values[m, p, s]), one)
    return run


def _once(n: int) -> Iterator[np.ndarray]:
    """Every sample once, instead of draws."""
    yield np.ones((1, n))


def _by_severity(sets: list[CorruptedSet], severities: list[int], blocks: Any) -> Any:
    """Means over the sets of a severity, (3, 2, S, n_draws)."""
    total: Any = 0.0
    # Sets of one size are rows of the same samples and share their draws.
    for n in {s.n_samples for s in sets}:
        alike = [s for s in sets if s.n_samples == n]
        parts = [_sums(alike, severities, counts) for counts in blocks(n)]
        total = total + np.concatenate(parts, axis=-1)
    n_sets = [sum(s.severity == severity for s in sets) for severity in severities]
    return total / np.array(n_sets)[:, None]


def _sums(
    sets: list[CorruptedSet], severities: list[int], counts: np.ndarray
) -> np.ndarray:
    """Sums over the sets of a severity, (3, 2, S, B), under counts (B, N)."""
    B, N = counts.shape
    sums = np.zeros((len(METRICS), 2, len(severities), B))
    for one in sets:
        s, own = severities.index(one.severity), one.counts(counts)
        sums[:2, :, s] += one.by_sample() @ own.T / N
        sums[2, :, s] += one.ece(own)
    return sums
