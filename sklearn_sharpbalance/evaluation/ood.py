"""Telling samples of another distribution from those that were learned."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sklearn_sharpbalance.evaluation._measures import Key, Measured, Run
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_auroc
from sklearn_sharpbalance.evaluation._table import Table
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import LOGIT_SCORES, OOD_SCORES, ood_auroc
from sklearn_sharpbalance.metrics._outputs import Outputs, outputs_of

__all__ = ["DEFAULT_SCORES", "OODEvaluation", "ood_evaluation"]

DEFAULT_SCORES = ("msp", "entropy", "energy", "mutual_information", "pds")
# Scores of the differences between members: one member has none.
OF_DIFFERENCES = frozenset({"mutual_information", "pds", "unique"})
# Scores of a prediction: for the ensemble, of the one that it makes.
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


class OODEvaluation(Table):
    """Area under the ROC curve of each score, of the ensemble and its members.

    As a mapping: columns ``score``, ``ensemble`` and ``members`` (the mean over them,
    NaN for scores of the members' differences, which one member does not have).

    Parameters
    ----------
    scores : sequence of str
    ensemble, members : array-likes of shape (n_scores,)

    Examples
    --------
    >>> result = OODEvaluation(["msp"], [0.9], [0.8])
    >>> result.auroc, result.member_auroc
    ({'msp': 0.9}, {'msp': 0.8})
    """

    def __init__(self, scores, ensemble, members):
        super().__init__({"score": scores, "ensemble": ensemble, "members": members})

    @property
    def auroc(self) -> dict[str, float]:
        """AUROC of the ensemble by score."""
        return dict(zip(self["score"].tolist(), self["ensemble"].tolist()))

    @property
    def member_auroc(self) -> dict[str, float]:
        """Mean AUROC of a member by score, where it has one."""
        pairs = zip(self["score"].tolist(), self["members"].tolist())
        return {score: value for score, value in pairs if not np.isnan(value)}


def ood_evaluation(estimator, X_in, X_out, scores=None):
    """How well an ensemble tells foreign samples from known ones.

    Parameters
    ----------
    estimator : fitted classifier
        An ensemble of this package, or any classifier; for the latter only the scores
        of one prediction are there.
    X_in : array-like
        Samples of the training distribution, not used in training.
    X_out : array-like
        Foreign samples, laid out alike.
    scores : iterable of str or None, default=None
        Keys of :data:`~sklearn_sharpbalance.metrics.OOD_SCORES`. None takes "msp",
        "entropy", "energy", "mutual_information" and "pds", less those that the
        classifier does not have ("energy" needs logits, the last two several members).

    Returns
    -------
    result : OODEvaluation

    Notes
    -----
    For the ensemble, "msp" and "entropy" are those of what it predicts (for an average
    of probabilities its "msp" is "bma"), "energy" that of the mean logits. A member's
    value is that of the member alone, averaged over the members.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_sharpbalance.evaluation import ood_evaluation
    >>> X, y = load_iris(return_X_y=True)
    >>> known = y < 2
    >>> clf = LogisticRegression().fit(X[known], y[known])
    >>> ood_evaluation(clf, X[known], X[~known]).auroc.keys()
    dict_keys(['msp', 'entropy'])
    """
    inside, outside = outputs_of(estimator, X_in), outputs_of(estimator, X_out)
    names = check_scores(scores, inside, type(estimator).__name__)
    rows = []
    for name in names:
        known, foreign = _scores(name, inside), _scores(name, outside)
        alone = zip(_member_scores(name, inside), _member_scores(name, outside))
        members = [ood_auroc(*pair) for pair in alone]
        mean = float(np.mean(members)) if members else np.nan
        rows.append((name, ood_auroc(known, foreign), mean))
    return OODEvaluation(*zip(*rows))


def check_scores(
    scores: Iterable[str] | None, outputs: Outputs, name: str
) -> list[str]:
    """Names of the scores that a classifier has; an error for those asked in vain."""
    missing = _missing(outputs)
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
        raise InvalidInputError("scores is empty. Pass None for the usual ones.")
    return names


def _missing(outputs: Outputs) -> dict[str, str]:
    missing: dict[str, str] = {}
    if outputs.member_logits is None:
        why = "it needs logits, from a method member_decision_function"
        missing |= dict.fromkeys(LOGIT_SCORES, why)
    if len(outputs.member_probas) == 1:
        why = "it compares members, and there is only one"
        missing |= dict.fromkeys(OF_DIFFERENCES, why)
    return missing


def _scores(name: str, outputs: Outputs) -> np.ndarray:
    """Score of each sample by the ensemble, (N,); larger = more foreign."""
    if name in OF_PREDICTION:
        return OOD_SCORES[name](outputs.proba[None])
    if name in LOGIT_SCORES:
        return OOD_SCORES[name](outputs.member_logits)
    return OOD_SCORES[name](outputs.member_probas)


def _member_scores(name: str, outputs: Outputs) -> list[np.ndarray]:
    """Score of each sample by each member alone; none for a score of differences."""
    if name in OF_DIFFERENCES:
        return []
    given = outputs.member_logits if name in LOGIT_SCORES else outputs.member_probas
    assert given is not None
    return [OOD_SCORES[name](member[None]) for member in given]


def measure_ood(
    inside: Outputs, outside: Mapping[str, Outputs], draws: Draws, stream: int = 0
) -> Run:
    """AUROC of every score for every foreign set, with bootstrap draws.

    Both the known and the foreign samples are drawn.
    """
    run: Run = {}
    for number, (set_name, out) in enumerate(outside.items()):
        for score in check_scores(None, inside, ""):
            detail = SCORE_NAMES[score]
            detail = f"{set_name}: {detail}" if len(outside) > 1 else detail
            pairs = {
                "ensemble": [(_scores(score, inside), _scores(score, out))],
                "members": list(
                    zip(_member_scores(score, inside), _member_scores(score, out))
                ),
            }
            for part, scores in pairs.items():
                if scores:
                    key = Key("ood_auroc", part, detail)
                    run[key] = _measured_auroc(scores, draws, stream, number)
    return run


def _measured_auroc(
    pairs: list[tuple[np.ndarray, np.ndarray]], draws: Draws, stream: int, number: int
) -> Measured:
    """Mean over predictors of the AUROC."""
    value = float(np.mean([ood_auroc(*pair) for pair in pairs]))
    if draws.n_draws == 0:
        return Measured(value)
    n_in, n_out = map(len, pairs[0])
    parts = [
        np.mean([weighted_auroc(known, foreign, *pair) for pair in pairs], axis=0)
        for known, foreign in draws.paired_blocks(n_in, n_out, stream, number)
    ]
    return Measured(value, np.concatenate(parts))


def as_foreign_sets(ood: Any, X: Any) -> dict[str, Any]:
    """Names of foreign sets and their samples."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        return {"foreign": ood}
    # Samples may be dictionaries themselves: of the keys that X has.
    if isinstance(X, Mapping) and set(X) == set(ood):
        return {"foreign": ood}
    sets = {str(name): samples for name, samples in ood.items()}
    if len(sets) < len(ood):
        raise InvalidInputError(
            f"Names of foreign sets must differ as text, got {list(ood)}."
        )
    return sets
