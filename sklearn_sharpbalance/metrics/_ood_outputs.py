"""Out-of-distribution scores of a fitted ensemble and of its members."""

from collections.abc import Iterable

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import Outputs
from sklearn_sharpbalance.metrics.ood import LOGIT_SCORES, OOD_SCORES

__all__ = ["SCORE_NAMES", "check_score_names", "ensemble_scores", "member_scores"]

DEFAULT_SCORES = ("msp", "entropy", "energy", "mutual_information", "pds")
# Scores that compare members: a single member has none.
OF_DIFFERENCES = frozenset({"mutual_information", "pds", "unique"})
# Scores of one prediction: those of an ensemble use its own prediction.
OF_PREDICTION = frozenset({"msp", "entropy"})
SCORE_NAMES = {
    "msp": "MSP",
    "bma": "BMA",
    "pds": "PDS",
    "entropy": "entropy",
    "energy": "energy",
    "mutual_information": "mutual information",
    "unique": "unique predictions",
}


def check_score_names(
    scores: Iterable[str] | None, outputs: Outputs, name: str
) -> list[str]:
    """Return the names of the scores, or raise if the classifier lacks one."""
    missing = missing_scores(outputs)
    if scores is None:
        return [score for score in DEFAULT_SCORES if score not in missing]
    names = [scores] if isinstance(scores, str) else list(scores)
    for score in names:
        if score not in OOD_SCORES:
            raise InvalidInputError(
                f"Unknown score {score!r}. Choose one of "
                f"{', '.join(map(repr, OOD_SCORES))}."
            )
        if score in missing:
            raise InvalidInputError(f"{name} has no score {score!r}: {missing[score]}.")
    if not names:
        raise InvalidInputError("scores is empty. Pass None for the default scores.")
    return names


def missing_scores(outputs: Outputs) -> dict[str, str]:
    """Return the scores that a classifier does not have, and why."""
    missing: dict[str, str] = {}
    if outputs.member_logits is None:
        why = "it needs logits, from a method member_decision_function"
        missing |= dict.fromkeys(LOGIT_SCORES, why)
    if len(outputs.member_probas) == 1:
        why = "it compares members, and there is only one"
        missing |= dict.fromkeys(OF_DIFFERENCES, why)
    return missing


def ensemble_scores(name: str, outputs: Outputs) -> np.ndarray:
    """Return the ensemble's score of each sample, (N,); larger is more foreign."""
    if name in OF_PREDICTION:
        return OOD_SCORES[name](outputs.proba[None])
    if name in LOGIT_SCORES:
        return OOD_SCORES[name](outputs.member_logits)
    return OOD_SCORES[name](outputs.member_probas)


def member_scores(name: str, outputs: Outputs) -> list[np.ndarray]:
    """Return each member's own score (N,); nothing for a score that compares them."""
    if name in OF_DIFFERENCES:
        return []
    values = outputs.member_logits if name in LOGIT_SCORES else outputs.member_probas
    assert values is not None
    return [OOD_SCORES[name](member[None]) for member in values]
