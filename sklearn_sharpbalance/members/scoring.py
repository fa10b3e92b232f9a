"""Compute the sharpness of every training sample for one member."""

import numpy as np
import torch

from sklearn_sharpbalance.data.training_data import near_device
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.members.state import restore
from sklearn_sharpbalance.runtime.devices import autocast, tf32
from sklearn_sharpbalance.runtime.rng import epoch_seed, random_stream
from sklearn_sharpbalance.runtime.torch_internals import in_place_version

__all__ = ["score_member"]

SCORING = 2**31  # used in place of the number of an epoch, for a separate seed


def score_member(net, state, data, scorer, precision="float32"):
    """Return the scores of one member: eval mode, no augmentation, observed labels.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    state : MemberState
    data : TrainingData
    scorer : SharpnessScorer
    precision : str, default="float32"
        Precision of the passes; float32 if the scorer ``needs_float32``.

    Returns
    -------
    sharpness : ndarray of shape (N,), dtype float64
        Multiplied by a power of the sample weights that fits the scorer's ``degree``.

    Notes
    -----
    Arrays that would take more than half of a GPU's free memory stay on the host, as
    they do in training; the scorer moves them slice by slice.

    Random draws of a scorer depend on the member's seed only.
    """
    net = restore(net, state)
    net.module_.eval()
    X = data.X
    if isinstance(X, np.ndarray | dict):
        X, _ = near_device(X, torch.device(net.device))
    precision = "float32" if scorer.needs_float32 else precision
    # Do not cache cast weights: a scorer may change the weights between passes.
    casts = autocast(precision, net.device, cache=False)
    stream = random_stream(net.device, seed=epoch_seed(state.seed, SCORING))
    with stream, casts, tf32(precision):
        try:
            scores = scorer(net, X, data.y)
        except (DivergenceError, InvalidInputError) as error:
            error.add_note(f"Member {state.index} was being scored.")
            raise
    _check_unwritten(X, scorer)
    if data.weight is not None:
        scores = scores * data.weight.astype(np.float64) ** scorer.degree
    return scores


def _check_unwritten(X, scorer):
    """Raise if the scorer changed X in place: it may be the user's data."""
    for part in X.values() if isinstance(X, dict) else [X]:
        is_checked = isinstance(part, torch.Tensor) and not part.is_inference()
        if is_checked and in_place_version(part):
            raise InvalidInputError(
                f"{scorer!r} has changed X in place, which the members train on. "
                "Change a copy, X.clone(), instead."
            )
