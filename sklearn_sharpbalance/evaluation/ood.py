"""Detect samples of another distribution than the training data's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sklearn_sharpbalance.evaluation._measures import Key, Measured, Run
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_auroc
from sklearn_sharpbalance.evaluation._table import Table
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import ood_auroc
from sklearn_sharpbalance.metrics._ood_outputs import (
    SCORE_NAMES,
    check_score_names,
    ensemble_scores,
    member_scores,
)
from sklearn_sharpbalance.metrics._outputs import Outputs, outputs_of

__all__ = ["OODEvaluation", "ood_evaluation"]


class OODEvaluation(Table):
    """Area under the ROC curve of each score, for an ensemble and its members.

    A mapping with the columns ``score``, ``ensemble`` and ``members``: the mean over
    the members, or NaN for a score that compares members.

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
        """Mean AUROC of the members by score, without scores that compare members."""
        pairs = zip(self["score"].tolist(), self["members"].tolist())
        return {score: value for score, value in pairs if not np.isnan(value)}


def ood_evaluation(estimator, X_in, X_out, scores=None):
    """Measure how well an ensemble detects out-of-distribution samples.

    Parameters
    ----------
    estimator : fitted classifier
        An ensemble of this package, or any classifier. Other classifiers only have
        the scores of one prediction.
    X_in : array-like
        Samples of the training distribution, not used in training.
    X_out : array-like
        Out-of-distribution samples, in the same layout.
    scores : iterable of str or None, default=None
        Keys of :data:`~sklearn_sharpbalance.metrics.OOD_SCORES`. None takes those of
        "msp", "entropy", "energy", "mutual_information" and "pds" that the classifier
        has ("energy" needs logits, the last two need several members).

    Returns
    -------
    result : OODEvaluation

    Notes
    -----
    For the ensemble, "msp" and "entropy" are computed from its own prediction (if it
    averages probabilities, "msp" equals "bma"), and "energy" from the mean logits. The
    value for the members is the mean over the members' own values.

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
    names = check_score_names(scores, inside, type(estimator).__name__)
    ensemble, members = [], []
    for name in names:
        pairs = zip(member_scores(name, inside), member_scores(name, outside))
        of_members = [ood_auroc(known, foreign) for known, foreign in pairs]
        ensemble.append(
            ood_auroc(ensemble_scores(name, inside), ensemble_scores(name, outside))
        )
        members.append(float(np.mean(of_members)) if of_members else np.nan)
    return OODEvaluation(names, ensemble, members)


def measure_ood(
    inside: Outputs, outside: Mapping[str, Outputs], draws: Draws, stream: int = 0
) -> Run:
    """Measure the AUROC of every score for every foreign set, with bootstrap draws.

    A draw takes both known and foreign samples.
    """
    run: Run = {}
    for number, (set_name, out) in enumerate(outside.items()):
        for score in check_score_names(None, inside, ""):
            detail = SCORE_NAMES[score]
            detail = f"{set_name}: {detail}" if len(outside) > 1 else detail
            pairs = {
                "ensemble": [
                    (ensemble_scores(score, inside), ensemble_scores(score, out))
                ],
                "members": list(
                    zip(member_scores(score, inside), member_scores(score, out))
                ),
            }
            for part, scores in pairs.items():
                if scores:
                    key = Key("ood_auroc", part, detail)
                    run[key] = _measure_auroc(
                        scores, draws, stream=stream, number=number
                    )
    return run


def _measure_auroc(
    pairs: list[tuple[np.ndarray, np.ndarray]],
    draws: Draws,
    *,
    stream: int,
    number: int,
) -> Measured:
    """Measure the mean AUROC over predictors, of pairs of known and foreign scores."""
    value = float(np.mean([ood_auroc(known, foreign) for known, foreign in pairs]))
    if draws.n_draws == 0:
        return Measured(value)
    n_in, n_out = len(pairs[0][0]), len(pairs[0][1])
    parts = []
    for counts_in, counts_out in draws.paired_blocks(
        n_in, n_out, stream=stream, number=number
    ):
        areas = [
            weighted_auroc(
                counts_in=counts_in,
                counts_out=counts_out,
                scores_in=known,
                scores_out=foreign,
            )
            for known, foreign in pairs
        ]  # (B,) each
        parts.append(np.mean(areas, axis=0))
    return Measured(value, np.concatenate(parts))


def as_foreign_sets(ood: Any, X: Any) -> dict[str, Any]:
    """Return the foreign sets by name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        return {"foreign": ood}
    # A mapping with the keys of X is one set of samples, as X is.
    if isinstance(X, Mapping) and set(X) == set(ood):
        return {"foreign": ood}
    sets = {str(name): samples for name, samples in ood.items()}
    if len(sets) < len(ood):
        raise InvalidInputError(
            f"Names of foreign sets must differ as text, got {list(ood)}."
        )
    return sets
