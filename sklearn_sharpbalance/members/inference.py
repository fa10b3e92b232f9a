"""Run one member on samples: a check before training, and sharpness scores."""

import numpy as np
import torch

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.autodiff import is_out_of_memory
from sklearn_sharpbalance.data.training_data import (
    ArrayRows,
    DeviceData,
    near_device,
)
from sklearn_sharpbalance.exceptions import (
    DivergenceError,
    InvalidInputError,
    SharpBalanceError,
)
from sklearn_sharpbalance.members.state import restore
from sklearn_sharpbalance.runtime.devices import autocast, tf32
from sklearn_sharpbalance.runtime.rng import epoch_seed, random_stream
from sklearn_sharpbalance.runtime.torch_internals import in_place_version
from sklearn_sharpbalance.sharpness.base import is_of_package

__all__ = ["check_module", "score_member", "score_net"]

SCORING = 2**31  # used in place of the number of an epoch, for a separate seed


def check_module(net, seed, data, n_classes):
    """Raise if a member's net fails on two samples or returns invalid logits."""
    name = type(net.module_.module).__name__
    net.module_.eval()
    rows = np.arange(min(2, len(data)))
    with torch.no_grad(), random_stream(net.device, seed=seed):
        for x, _ in DeviceData(data, net.device).iterate(rows[None]):
            try:
                output = net.infer(x)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise InvalidInputError(
                    f"The module {name} failed on a batch of {_shape_text(x)}: "
                    f"{in_a_sentence(error)}. Check that it takes samples of the shape "
                    "of X."
                ) from error
    _check_output(output, name, len(rows), n_classes)
    _check_scale(net, output, name)
    _check_loss(net, output)


def _shape_text(x):
    if isinstance(x, dict):
        shapes = {key: tuple(value.shape) for key, value in x.items()}
        return f"shapes {shapes}"
    return f"shape {getattr(x, 'shape', None)}"


def _check_output(output, name, n_samples, n_classes):
    if not isinstance(output, torch.Tensor):
        raise InvalidInputError(
            f"The module {name} returned a {type(output).__name__}; it must return one "
            f"tensor of logits of shape (n_samples, {n_classes})."
        )
    if output.shape != (n_samples, n_classes):
        raise InvalidInputError(
            f"The module {name} returned shape {tuple(output.shape)} for {n_samples} "
            f"samples of {n_classes} classes; it must return "
            f"({n_samples}, {n_classes})."
        )
    if not torch.isfinite(output).all():
        raise InvalidInputError(
            f"The module {name} returned values that are not finite before any "
            "training. Check its initialisation and the scale of X."
        )


def _check_scale(net, output, name):
    """Raise if outputs are not probabilities for NLLLoss, logits for other losses."""
    total = output.sum(1).float()
    looks_like_proba = bool(
        (output >= 0).all() and torch.allclose(total, torch.ones_like(total))
    )
    takes_proba = isinstance(net.criterion_, torch.nn.NLLLoss)
    if takes_proba and not looks_like_proba:
        raise InvalidInputError(
            f"With criterion=NLLLoss skorch takes probabilities from the module, but "
            f"{name} returned other values. End it with a softmax, or pass "
            "criterion=torch.nn.CrossEntropyLoss and return logits."
        )
    if looks_like_proba and not takes_proba:
        raise InvalidInputError(
            f"The module {name} returned probabilities, but the criterion "
            f"{type(net.criterion_).__name__} takes logits. Remove the softmax at its "
            "end."
        )


def _check_loss(net, output):
    """Raise if the criterion does not take logits and class codes."""
    n_samples = 3 if output.shape[1] == 2 else 2  # codes do not broadcast to logits
    codes = torch.arange(n_samples, device=output.device) % output.shape[1]
    logits = output[:1].expand(n_samples, -1)
    try:
        with torch.no_grad(), random_stream(net.device):
            net.get_loss(logits, codes, training=True)
    except SharpBalanceError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The criterion {type(net.criterion_).__name__} does not take logits of "
            f"shape {tuple(logits.shape)} and {n_samples} class codes: "
            f"{in_a_sentence(error)}. Use a loss for classes, such as "
            "torch.nn.CrossEntropyLoss."
        ) from error


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
    they do in training; the scorer moves them slice by slice. Rows of a memory map stay
    on disk for scorers of this package; other scorers get a copy in memory.

    Random draws of a scorer depend on the member's seed only.
    """
    return score_net(restore(net, state), state, data, scorer, precision)


def score_net(net, state, data, scorer, precision):
    """Return what :func:`score_member` does, for the net of a member."""
    net.module_.eval()
    X = data.X
    if isinstance(X, ArrayRows) and not is_of_package(scorer):
        X = X[:]
    if isinstance(X, np.ndarray | dict | ArrayRows):
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
