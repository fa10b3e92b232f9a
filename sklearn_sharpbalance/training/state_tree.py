"""States of members and ensembles as plain trees, and back."""

import warnings
from typing import Any

from skorch.callbacks import Callback

from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.members import MemberState, restore
from sklearn_sharpbalance.persistence.encoding import NotPlainError, encode
from sklearn_sharpbalance.persistence.fingerprint import describe
from sklearn_sharpbalance.runtime.rng import BEFORE_TRAINING, epoch_seed, random_stream
from sklearn_sharpbalance.training.state import EnsembleState

__all__ = ["member_from_tree", "member_tree", "state_from_tree", "state_tree"]


def state_tree(state: EnsembleState) -> dict[str, Any]:
    """An ensemble between two segments as plain values, arrays and tensors."""
    return {
        "members": [member_tree(member) for member in state.members],
        "masks": state.masks,
        "sharpness": state.sharpness,
        "epoch": state.epoch,
        "phases": state.phases,
        "epochs": state.epochs,
        "passes": state.passes,
    }


def state_from_tree(tree, net, data) -> EnsembleState:
    """The ensemble that :func:`state_tree` was given.

    Parameters
    ----------
    tree : dict
    net : NeuralNetClassifier
        Settings of all members, for their callbacks.
    data : TrainingData
        What callbacks are given at the start of a training.
    """
    members = [member_from_tree(member, net, data) for member in tree["members"]]
    return EnsembleState(**{**tree, "members": members})


def member_tree(member: MemberState) -> dict[str, Any]:
    """A member as plain values and tensors; callbacks by what they hold."""
    callbacks = member.extra.get("callbacks", {})
    kept = {name: _callback_tree(value) for name, value in callbacks.items()}
    rest = {k: v for k, v in member.extra.items() if k != "callbacks"}
    tree = {name: getattr(member, name) for name in vars(member)}
    return {**tree, "extra": {**rest, "callbacks": kept} if kept else rest}


def member_from_tree(tree, net, data) -> MemberState:
    """The member that :func:`member_tree` was given."""
    member = MemberState(**tree)
    if "callbacks" in member.extra:
        kept = _callbacks(net, member, data)
        member.extra = {**member.extra, "callbacks": kept}
    return member


def _callback_tree(value):
    """State of a scheduler as it is; of a callback the attributes that are plain."""
    if not isinstance(value, Callback):
        return {"scheduler": value}
    plain, other = {}, {}
    for name, attribute in vars(value).items():
        try:
            encode(attribute, {})
            plain[name] = attribute
        except NotPlainError:
            other[name] = describe(attribute)
    return {"plain": plain, "other": other}


def _callbacks(net, member, data):
    """Callbacks of a member that know what they knew.

    They begin as in a new training, which makes again what is not plain (functions,
    scorers); then they get back their numbers. What comes out different is named.
    """
    trees = member.extra["callbacks"]
    fresh = dict(restore(net, member).callbacks_)
    kept = {}
    for name, tree in trees.items():
        if "scheduler" in tree:
            kept[name] = tree["scheduler"]
        elif name in fresh:
            kept[name] = _revive(fresh[name], name, tree, net, member, data)
    return kept


def _revive(callback, name, tree, net, member, data):
    own = restore(net, member)
    with random_stream(own.device, seed=epoch_seed(member.seed, BEFORE_TRAINING)):
        callback.on_train_begin(own, X=data.X, y=data.y)
    vars(callback).update(tree["plain"])
    lost = [
        key
        for key, text in tree["other"].items()
        if not hasattr(callback, key) or describe(getattr(callback, key)) != text
    ]
    if lost:
        warnings.warn(
            f"The callback {name!r} ({type(callback).__name__}) of member "
            f"{member.index} starts again where a checkpoint cannot hold what it kept: "
            f"{', '.join(lost)}.",
            SharpBalanceWarning,
            stacklevel=2,
        )
    return callback
