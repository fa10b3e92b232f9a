"""The numbers of one run: each metric's value, and its values on bootstrap draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.evaluation._resampling import (
    Draws,
    weighted_aurc,
    weighted_ece,
)
from sklearn_sharpbalance.metrics._outputs import Outputs

__all__ = [
    "METRICS",
    "Key",
    "Measured",
    "Metric",
    "Run",
    "claims",
    "measure_predictions",
    "sample_nll",
]


class Metric(NamedTuple):
    """How a metric is called, which way is better, and what it says."""

    label: str
    better: int  # 1 larger, -1 smaller, 0 neither
    meaning: str
    is_biased: bool = False  # draws with replacement lie above the value

    @property
    def arrow(self) -> str:
        """The label with the better direction."""
        return self.label + {1: " ↑", -1: " ↓", 0: ""}[self.better]


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", 1, "Share of right predictions."),
    "nll": Metric(
        "NLL", -1, "Mean negative log-probability of the true class, in nats."
    ),
    "brier": Metric(
        "Brier", -1, "Mean squared distance of the probabilities from the truth."
    ),
    "ece": Metric(
        "ECE",
        -1,
        "Mean gap between confidence and accuracy, in 15 bins of width 1/15.",
        is_biased=True,
    ),
    "aurc": Metric(
        "AURC", -1, "Mean error as ever less confident predictions are accepted."
    ),
    "eir": Metric(
        "EIR", 1, "Share of the members' mean error that the ensemble removes."
    ),
    "der": Metric("DER", 0, "Disagreement of the members over their mean error."),
    "disagreement": Metric(
        "Disagreement", 0, "Share of samples on which two members differ."
    ),
    "variance": Metric(
        "Variance", 0, "Variance of the members' probabilities, summed over classes."
    ),
    "kl": Metric("KL", 0, "Mean divergence between two members' predictions."),
    "sharpness": Metric(
        "Sharpness",
        -1,
        "How far a member's loss can rise near its weights: adaptive worst case, "
        "unless another measure was passed.",
    ),
    "corrupted_accuracy": Metric(
        "cACC", 1, "Accuracy on corrupted samples, mean over kinds and severities."
    ),
    "corrupted_nll": Metric(
        "cNLL", -1, "NLL on corrupted samples, mean over kinds and severities."
    ),
    "corrupted_ece": Metric(
        "cECE",
        -1,
        "ECE on corrupted samples, mean over kinds and severities.",
        is_biased=True,
    ),
    "ood_auroc": Metric(
        "OOD AUROC", 1, "How well a score tells foreign samples from known ones."
    ),
    "epochs": Metric("Epochs", 0, "Epochs that were run."),
    "gradient_passes": Metric(
        "Gradient passes",
        0,
        "Passes over the training set, all members together; SAM counts double.",
    ),
}


class Key(NamedTuple):
    """What a number is about."""

    metric: str
    part: str = "ensemble"  # or "members": the mean over them
    detail: str = ""  # severity or out-of-distribution score


class Measured(NamedTuple):
    """A number, and what it is on each bootstrap draw."""

    value: float
    draws: np.ndarray | None = None  # (n_draws,)


Run = dict[Key, Measured]

_PROPER: dict[str, Callable[..., float]] = {
    "nll": metrics.negative_log_likelihood,
    "brier": metrics.brier_score,
    "ece": metrics.expected_calibration_error,
    "aurc": metrics.area_under_risk_coverage,
}


def measure_predictions(outputs: Outputs, y: Any, draws: Draws, stream: int = 0) -> Run:
    """Accuracy, calibration and diversity on clean samples.

    Parameters
    ----------
    outputs : Outputs
    y : array-like of shape (N,)
    draws : Draws
    stream : int, default=0
        Which set of samples it is.
    """
    codes = outputs.codes(y)
    values = _values(outputs, codes)
    sampled = _sampled(outputs, codes, draws, stream)
    return {key: Measured(value, sampled.get(key)) for key, value in values.items()}


def _values(outputs: Outputs, codes: np.ndarray) -> dict[Key, float]:
    """Values on all samples, by the functions of ``metrics``."""
    probas, proba = outputs.member_probas, outputs.proba
    values = {
        Key("accuracy", "members"): float((probas.argmax(-1) == codes).mean()),
        Key("accuracy"): float((proba.argmax(-1) == codes).mean()),
    }
    for name, function in _PROPER.items():
        of_members = [function(codes, member) for member in probas]
        values[Key(name, "members")] = float(np.mean(of_members))
        values[Key(name)] = function(codes, proba)
    if len(probas) > 1:
        values |= {
            Key("eir"): metrics.ensemble_improvement_rate(
                codes, probas, ensemble_proba=proba
            ),
            Key("der"): metrics.disagreement_error_ratio(codes, probas),
            Key("disagreement"): metrics.disagreement(probas),
            Key("variance"): metrics.variance_diversity(probas),
            Key("kl"): metrics.kl_diversity(probas),
        }
    return values


def _sampled(
    outputs: Outputs, codes: np.ndarray, draws: Draws, stream: int
) -> dict[Key, np.ndarray]:
    """The same on bootstrap draws: {key: (n_draws,)}."""
    if draws.n_draws == 0:
        return {}
    linear = _per_sample(outputs, codes)
    table = np.stack(list(linear.values()), axis=1)  # (N, K)
    pairs = [claims(p, codes) for p in (*outputs.member_probas, outputs.proba)]
    parts: list[dict[Key, np.ndarray]] = []
    for counts in draws.blocks(len(codes), stream):
        part = dict(zip(linear, (counts @ table / len(codes)).T))
        part |= _over_predictors("ece", weighted_ece, counts, pairs)
        part |= _over_predictors("aurc", weighted_aurc, counts, pairs)
        parts.append(part)
    sampled = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return _with_ratios(sampled)


def claims(proba: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidence of the predicted class, (N,), and whether it is right."""
    return proba.max(axis=1).astype(np.float64), proba.argmax(axis=1) == codes


def _over_predictors(
    name: str, statistic: Callable, counts: np.ndarray, claims: list
) -> dict[Key, np.ndarray]:
    """Mean over the members, and the ensemble, which comes last."""
    *members, ensemble = (statistic(counts, *claim) for claim in claims)
    return {Key(name, "members"): np.mean(members, axis=0), Key(name): ensemble}


def _with_ratios(sampled: dict[Key, np.ndarray]) -> dict[Key, np.ndarray]:
    """Add what is a function of means; zero where the members make no error."""
    member_error = 1 - sampled[Key("accuracy", "members")]
    # Sums of hundreds of ones and of shares of one may differ in the last digit.
    member_error = np.where(member_error < 1e-12, 0.0, member_error)
    if Key("disagreement") in sampled:
        gain = sampled[Key("accuracy")] - sampled[Key("accuracy", "members")]
        none = member_error == 0
        safe = np.where(none, 1.0, member_error)
        sampled[Key("der")] = np.where(none, 0.0, sampled[Key("disagreement")] / safe)
        undefined = np.where(gain < -1e-12, -np.inf, 0.0)
        sampled[Key("eir")] = np.where(none, undefined, gain / safe)
    return sampled


def _per_sample(outputs: Outputs, codes: np.ndarray) -> dict[Key, np.ndarray]:
    """What averages over samples, (N,) each."""
    probas, proba = outputs.member_probas, outputs.proba
    values = {
        Key("accuracy", "members"): (probas.argmax(-1) == codes).mean(axis=0),
        Key("accuracy"): (proba.argmax(-1) == codes).astype(np.float64),
    }
    for name, function in {"nll": sample_nll, "brier": _sample_brier}.items():
        of_members = [function(member, codes) for member in probas]
        values[Key(name, "members")] = np.mean(of_members, axis=0)
        values[Key(name)] = function(proba, codes)
    if len(probas) > 1:
        values |= {
            Key("disagreement"): _sample_disagreement(probas),
            Key("variance"): probas.var(axis=0, ddof=1, dtype=np.float64).sum(axis=-1),
            Key("kl"): _sample_kl(probas),
        }
    return values


def sample_nll(proba: np.ndarray, codes: np.ndarray) -> np.ndarray:
    true = proba[np.arange(len(codes)), codes].astype(np.float64)
    return -np.log(np.clip(true, np.finfo(proba.dtype).eps, 1.0))


def _sample_brier(proba: np.ndarray, codes: np.ndarray) -> np.ndarray:
    target = np.eye(proba.shape[1])[codes]
    return np.square(proba - target).sum(axis=1) / (2 if proba.shape[1] == 2 else 1)


def _sample_disagreement(probas: np.ndarray) -> np.ndarray:
    """Share of the pairs of members that differ, (N,)."""
    M, _, C = probas.shape
    votes = np.eye(C)[probas.argmax(-1)].sum(axis=0)  # (N, C)
    return 1 - (votes * (votes - 1)).sum(axis=1) / (M * (M - 1))


def _sample_kl(probas: np.ndarray, eps: float = 1e-12) -> np.ndarray:
    """Mean divergence over ordered pairs of members, (N,)."""
    M = len(probas)
    p = probas.astype(np.float64)
    logs = np.log(np.maximum(p, eps))
    own = np.einsum("mnc,mnc->n", p, logs)  # sum over i = j
    every = np.einsum("nc,nc->n", p.sum(axis=0), logs.sum(axis=0))  # sum over i, j
    return (M * own - every) / (M * (M - 1))
