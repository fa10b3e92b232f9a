"""The numbers of one run: each metric's value, and its values on bootstrap draws."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_ece
from sklearn_sharpbalance.metrics._checks import as_float
from sklearn_sharpbalance.metrics._outputs import Outputs
from sklearn_sharpbalance.metrics.diversity import (
    sample_disagreement,
    sample_kl,
    sample_variance,
)

PARTS = ("members", "ensemble")


class Metric(NamedTuple):
    """Label, better direction and meaning of a metric."""

    label: str
    better: int  # 1 larger, -1 smaller, 0 neither
    meaning: str
    is_biased: bool = False  # its values on draws are too large on average


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", 1, "fraction of right predictions"),
    "nll": Metric("NLL", -1, "mean negative log-probability of the true class"),
    "brier": Metric("Brier", -1, "mean squared distance from the truth"),
    "ece": Metric("ECE", -1, "gap between confidence and accuracy, 15 bins", True),
    "eir": Metric("EIR", 1, "fraction of the members' error that the ensemble removes"),
    "der": Metric("DER", 0, "disagreement of the members over their mean error"),
    "disagreement": Metric("Disagreement", 0, "fraction on which two members differ"),
    "variance": Metric("Variance", 0, "variance of the members' probabilities"),
    "kl": Metric("KL", 0, "mean divergence between two members' predictions"),
    "sharpness": Metric("Sharpness", -1, "adaptive worst case, or as given"),
    "corrupted_accuracy": Metric("cACC", 1, "accuracy on corrupted samples"),
    "corrupted_nll": Metric("cNLL", -1, "NLL on corrupted samples"),
    "corrupted_ece": Metric("cECE", -1, "ECE on corrupted samples", True),
    "ood_auroc": Metric("OOD AUROC", 1, "how well a score separates the samples"),
    "epochs": Metric("Epochs", 0, "epochs that were run"),
    "gradient_passes": Metric("Gradient passes", 0, "passes over the training set"),
}


class Key(NamedTuple):
    """Metric, part of the ensemble and detail of a number."""

    metric: str
    part: str = "ensemble"  # or "members": the mean over them
    detail: str = ""  # severity or out-of-distribution score

    @property
    def label(self) -> str:
        """The metric's label with the detail and the better direction."""
        metric = METRICS[self.metric]
        name = f"{metric.label}, {self.detail}" if self.detail else metric.label
        return name + {1: " ↑", -1: " ↓", 0: ""}[metric.better]


class Measured(NamedTuple):
    """A number, and its value on each bootstrap draw."""

    value: float
    draws: np.ndarray | None = None  # (n_draws,)


Run = dict[Key, Measured]


def as_run(values: Mapping[Key, np.ndarray]) -> Run:
    """Convert what :meth:`Draws.apply` returns."""
    return {
        key: Measured(float(own[0]), own[1:] if len(own) > 1 else None)
        for key, own in values.items()
    }


class SampleNumbers(NamedTuple):
    """Numbers of each predictor on each sample: the members first, the ensemble last.

    Accuracy, negative log-likelihood and calibration error are computed from them, for
    clean and for corrupted samples.
    """

    right: np.ndarray  # (M + 1, N) bool
    confidence: np.ndarray  # (M + 1, N), of the predicted class
    nll: np.ndarray  # (M + 1, N)

    @classmethod
    def from_outputs(cls, outputs: Outputs, codes: np.ndarray) -> "SampleNumbers":
        """Compute the numbers from predictions and class codes (N,)."""
        probas = [as_float(p, "proba") for p in (*outputs.member_probas, outputs.proba)]
        return cls(
            right=np.stack([p.argmax(axis=1) == codes for p in probas]),
            confidence=np.stack([p.max(axis=1).astype(np.float64) for p in probas]),
            nll=np.stack([_sample_nll(p, codes) for p in probas]),
        )

    def averages(self) -> dict[Key, np.ndarray]:
        """Return the numbers that are averaged over samples, (N,) each."""
        return {
            **_members_and_ensemble("accuracy", self.right),
            **_members_and_ensemble("nll", self.nll),
        }

    def calibration(self, counts: np.ndarray) -> dict[Key, np.ndarray]:
        """Return the expected calibration errors (B,) on drawn samples."""
        pairs = zip(self.confidence, self.right)
        errors = [weighted_ece(counts, *pair) for pair in pairs]
        return _members_and_ensemble("ece", np.stack(errors))


def _members_and_ensemble(metric: str, values: np.ndarray) -> dict[Key, np.ndarray]:
    """Return the mean over members and the ensemble's row of values (M + 1, ...)."""
    return {
        Key(metric, "members"): values[:-1].mean(axis=0),
        Key(metric): values[-1].astype(np.float64),
    }


def weighted_means(
    counts: np.ndarray, averages: Mapping[Key, np.ndarray]
) -> dict[Key, np.ndarray]:
    """Return the means (B,) of numbers (N,) under counts (B, N)."""
    table = np.stack(list(averages.values()), axis=1)  # (N, K)
    return dict(zip(averages, (counts @ table / counts.shape[1]).T))


def measure_predictions(outputs: Outputs, y: Any, draws: Draws, stream: int = 0) -> Run:
    """Measure accuracy, calibration and diversity on clean samples.

    ``stream`` is the index of the set of samples.
    """
    codes = outputs.codes(y)
    _check_and_warn(outputs, codes)
    numbers = SampleNumbers.from_outputs(outputs, codes)
    has_members = len(outputs.member_probas) > 1
    averages = numbers.averages() | _sample_brier(outputs, codes)
    if has_members:
        averages |= _sample_diversity(outputs.member_probas)

    def statistics(counts: np.ndarray) -> dict[Key, np.ndarray]:
        found = weighted_means(counts, averages)
        found |= numbers.calibration(counts)
        if has_members:
            found |= _ratios(found)
        return found

    return as_run(draws.apply(statistics, (len(codes), stream)))


def _check_and_warn(outputs: Outputs, codes: np.ndarray) -> None:
    """Raise on invalid probabilities and warn of undefined numbers, as metrics do."""
    metrics.expected_calibration_error(codes, outputs.proba)
    if len(outputs.member_probas) > 1:
        metrics.disagreement_error_ratio(codes, outputs.member_probas)
        metrics.ensemble_improvement_rate(
            codes, outputs.member_probas, ensemble_proba=outputs.proba
        )


def _ratios(means: Mapping[Key, np.ndarray]) -> dict[Key, np.ndarray]:
    """Return DER and EIR (B,), which divide by the members' mean error.

    Where that error is zero, DER is 0, and EIR is 0 or, if the ensemble errs, -inf.
    """
    member_error = 1 - means[Key("accuracy", "members")]
    gain = means[Key("accuracy")] - means[Key("accuracy", "members")]
    is_zero = member_error < 1e-12  # up to rounding of the sums over samples
    divisor = np.where(is_zero, 1.0, member_error)
    undefined_eir = np.where(gain < -1e-12, -np.inf, 0.0)
    return {
        Key("der"): np.where(is_zero, 0.0, means[Key("disagreement")] / divisor),
        Key("eir"): np.where(is_zero, undefined_eir, gain / divisor),
    }


def _sample_nll(proba: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the negative log-probability of the true class, (N,)."""
    true = proba[np.arange(len(codes)), codes].astype(np.float64)
    return -np.log(np.clip(true, np.finfo(proba.dtype).eps, 1.0))


def _sample_brier(outputs: Outputs, codes: np.ndarray) -> dict[Key, np.ndarray]:
    """Return the squared distance from the truth, halved for two classes, (N,)."""
    n_classes = outputs.proba.shape[1]
    truth = np.eye(n_classes)[codes]  # (N, C)
    probas = (*outputs.member_probas, outputs.proba)
    squares = np.stack([np.square(p - truth).sum(axis=1) for p in probas])
    return _members_and_ensemble("brier", squares / (2 if n_classes == 2 else 1))


def _sample_diversity(probas: np.ndarray) -> dict[Key, np.ndarray]:
    """Return disagreement, variance and KL divergence of the members, (N,) each."""
    return {
        Key("disagreement"): sample_disagreement(probas.argmax(axis=-1)),
        Key("variance"): sample_variance(probas),
        Key("kl"): sample_kl(probas),
    }
