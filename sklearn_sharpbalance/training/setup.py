"""What a fit settles before its first epoch, and what it must not lose."""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.aggregation.rules import Aggregation
from sklearn_sharpbalance.data.inputs import InputFormat
from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.engine.out_of_memory import explain_out_of_memory
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from sklearn_sharpbalance.members import MemberState, initial_state
from sklearn_sharpbalance.members.check import check_module
from sklearn_sharpbalance.members.own_settings import own_settings
from sklearn_sharpbalance.members.schedules import check_factors
from sklearn_sharpbalance.members.state import state_of
from sklearn_sharpbalance.persistence.fingerprint import data_fingerprint, describe
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints, fit_fingerprint
from sklearn_sharpbalance.training.fitting import Seeds
from sklearn_sharpbalance.training.loop import Trainer

__all__ = [
    "FitJob",
    "FittedState",
    "check_same_classes",
    "first_members",
    "make_checkpoints",
]


@dataclass(frozen=True)
class FitJob:
    """Everything that a fit has settled before its first epoch.

    What can be asked of its parts before they are at work is asked here.
    """

    params: dict[str, Any]
    trainer: Trainer
    aggregation: Aggregation
    seeds: Seeds
    input_format: InputFormat
    classes: np.ndarray
    engine: EngineChoice
    checkpoints: FitCheckpoints | None = None

    def __post_init__(self):
        self.trainer.scorer.check()
        self.trainer.selector.check()
        check_factors(self.trainer.settings, len(self.trainer.data))


class FittedState:
    """Around a fit: leaves what was fitted before untouched if the fit fails.

    Where nothing was fitted before, an interrupted fit may leave a part of itself.

    Parameters
    ----------
    estimator : BaseDeepEnsemble

    Attributes
    ----------
    usable_epochs : int
        Epochs of the usable state that an interrupted fit has given the estimator.
    """

    def __init__(self, estimator):
        self.estimator, self.usable_epochs = estimator, 0
        self.before = self._attributes()

    def _attributes(self):
        return {k: v for k, v in vars(self.estimator).items() if k.endswith("_")}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            return
        if self.usable_epochs and "estimators_" not in self.before:
            warnings.warn(
                "The fit was interrupted. The ensemble is usable as it was after epoch "
                f"{self.usable_epochs}, the last that all members had finished "
                "together, or the best of those with early stopping.",
                SharpBalanceWarning,
                stacklevel=4,
            )
            return
        for name in self._attributes():
            delattr(self.estimator, name)
        vars(self.estimator).update(self.before)


def check_same_classes(classes, fitted):
    """Raise if fitted weights would get another meaning in a warm start.

    Parameters
    ----------
    classes, fitted : ndarray of shape (C,)
        Classes of the new labels, and those that the weights were fitted to.
    """
    if not np.array_equal(classes, fitted):
        raise InvalidInputError(
            "warm_start=True goes on from weights that were fitted to the classes "
            f"{fitted[:10].tolist()}, but y has the classes {classes[:10].tolist()}. "
            "Pass labels of the same classes, or set warm_start=False."
        )


def make_checkpoints(
    params, data, classes, seeds, warm_nets, **more
) -> FitCheckpoints | None:
    """Checkpoints of a fit, where the user wants them.

    Parameters
    ----------
    params : dict
        Parameters of the estimator.
    data : TrainingData
    classes : ndarray of shape (C,)
    seeds : Seeds
    warm_nets : list of NeuralNetClassifier
        Fitted nets that the fit starts from, if any.
    **more : str
        What else tells this fit from others.
    """
    if params["checkpoint_dir"] is None:
        return None
    start = describe([_weights(net) for net in warm_nets]) if warm_nets else "fresh"
    known = fit_fingerprint(params, data_fingerprint(data, classes))
    return FitCheckpoints(
        params["checkpoint_dir"],
        {**known, **more, "first weights": start},
        seeds,
        every=params["checkpoint_every"],
        on_error=params["on_checkpoint_error"],
    )


def first_members(net, seeds: Seeds, data, n_classes, warm_nets) -> list[MemberState]:
    """Members before training: fresh, or with the weights of an earlier fit.

    Parameters
    ----------
    net : NeuralNetClassifier
        What every member is a copy of.
    seeds : Seeds
    data : TrainingData
    n_classes : int
    warm_nets : list of NeuralNetClassifier
        Fitted nets whose weights the first members take.
    """
    members = [initial_state(net, i, seed) for i, seed in enumerate(seeds.members)]
    for member, fitted in zip(members, warm_nets):
        _take_weights(member, state_of(fitted))
    for member in members if own_settings(net) else members[:1]:
        check = partial(check_module, net, member, data, n_classes)
        explain_out_of_memory(check, net, len(members))
    return members


def _weights(net):
    """Weights and all buffers of a fitted net."""
    state = state_of(net)
    return state.module | state.extra.get("buffers", {})


def _take_weights(member, fitted):
    """Start a member from fitted weights; statistics of the input stay its own."""
    weights = {k: v for k, v in fitted.module.items() if k.startswith("module.")}
    for key, value in weights.items():
        if not torch.is_tensor(value):  # what get_extra_state returns
            continue
        if key not in member.module or member.module[key].shape != value.shape:
            raise InvalidInputError(
                f"warm_start=True goes on from the fitted weights, but {key!r} has "
                f"shape {tuple(value.shape)} there and does not fit the new network or "
                "data. Set warm_start=False."
            )
    member.module.update(weights)
    own = member.extra.get("buffers", {})
    loose = {  # such as have not been made for other sizes
        k: v
        for k, v in fitted.extra.get("buffers", {}).items()
        if k.startswith("module.") and own.get(k, v).shape == v.shape
    }
    if loose:
        member.extra["buffers"] = own | loose
