"""Sharpness of every training sample, as one member sees it."""

import numpy as np
import torch

from sklearn_sharpbalance.data.training_data import as_tensor, fits_on
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.members.state import restore
from sklearn_sharpbalance.runtime.precision import autocast, tf32
from sklearn_sharpbalance.runtime.rng import epoch_seed, random_stream

__all__ = ["score_member"]

SCORING = 2**31  # in the place of an epoch, of which there are never so many


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
        Of the forward and backward passes; a scorer that ``needs_float32`` has its
        way.

    Returns
    -------
    sharpness : ndarray of shape (N,), dtype float64
        Each sample's weight enters as it enters the loss.

    Notes
    -----
    Arrays that would take more than half of a GPU's free memory stay on the host, as
    they do in training; the scorer moves them slice by slice.

    What a scorer draws from torch's generators depends on the member's seed alone.
    """
    net = restore(net, state)
    net.module_.eval()
    X = data.X
    if isinstance(X, np.ndarray | dict):
        device = torch.device(net.device)
        X = as_tensor(X, device if fits_on(X, device) else "cpu")
    precision = "float32" if scorer.needs_float32 else precision
    # Without a cache of cast weights: a scorer may move the weights between passes.
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
    """Raise if the samples were written to: on the CPU they are the user's own."""
    for part in X.values() if isinstance(X, dict) else [X]:
        shared = isinstance(part, torch.Tensor) and part.device.type == "cpu"
        if shared and not part.is_inference() and part._version:
            raise InvalidInputError(
                f"{scorer!r} has changed X in place, which the members train on. Let "
                "it work on a copy, X.clone()."
            )
