"""Sharpness of every training sample, as one member sees it."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.data import as_tensor
from sklearn_sharpbalance.members.precision import autocast, tf32
from sklearn_sharpbalance.members.state import restore

__all__ = ["score_member"]


def score_member(net, state, data, scorer, precision="float32"):
    """Scores of one member: eval mode, no augmentation, observed labels.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    state : MemberState
    data : TrainingData
    scorer : SharpnessScorer
    precision : str, default="float32"
        Of the forward and backward passes.

    Returns
    -------
    sharpness : ndarray of shape (N,), dtype float64
        Each sample's weight enters as it enters the loss.
    """
    net = restore(net, state)
    X = data.X
    if isinstance(X, np.ndarray | dict):
        X = as_tensor(X, net.device)
    with autocast(precision, net.device), tf32(precision):
        scores = scorer.score_samples(net, X, data.y)
    scores = np.asarray(scores, dtype=np.float64)
    if scores.shape != data.y.shape or not np.isfinite(scores).all():
        raise InvalidInputError(
            f"{scorer!r} must return {len(data.y)} finite scores, got shape "
            f"{scores.shape} with {np.sum(~np.isfinite(scores))} values that are not "
            f"finite, for member {state.index}."
        )
    if data.weight is not None:
        scores = scores * data.weight.astype(np.float64) ** scorer.degree
    return scores
