"""Convert states of members and ensembles to plain values and back."""

import inspect
import math
import warnings
from typing import Any

import numpy as np
from skorch.callbacks import Callback

from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.members import MemberState, restore
from sklearn_sharpbalance.members.session import own_files
from sklearn_sharpbalance.persistence.encoding import NotPlainError, encode
from sklearn_sharpbalance.persistence.fingerprint import describe
from sklearn_sharpbalance.runtime.rng import BEFORE_TRAINING, epoch_seed, random_stream
from sklearn_sharpbalance.training.plan import EnsembleState


def state_tree(state: EnsembleState) -> dict[str, Any]:
    """Return the state of an ensemble as plain values, arrays and tensors."""
    return vars(state) | {"members": [member_tree(each) for each in state.members]}


def state_from_tree(tree, net, data) -> EnsembleState:
    """Return the state that :func:`state_tree` was given.

    Callbacks are those of ``net``; their ``on_train_begin`` gets ``data``.
    """
    members = [member_from_tree(member, net, data) for member in tree["members"]]
    state = EnsembleState(**{**tree, "members": members})
    _check_state(state, shape=(len(members), len(data)))
    return state


def _check_state(state, shape):
    """Raise ValueError unless the parts of a state have the types that a fit gives."""
    arrays = [(state.masks, "b"), (state.sharpness, "f")]
    counts = [state.epoch, *state.epochs, *(m.seed for m in state.members)]
    is_valid = (
        all(a is None or (a.shape, a.dtype.kind) == (shape, k) for a, k in arrays)
        and all(type(count) is int and 0 <= count < 2**63 for count in counts)
        and len(state.epochs) in (0, len(state.members))
        and [member.index for member in state.members] == list(range(shape[0]))
        and 0 <= float(state.passes) < math.inf
    )
    if not is_valid:
        raise ValueError("its state is not one of this ensemble")


def member_tree(member: MemberState) -> dict[str, Any]:
    """Return a member as plain values and tensors; callbacks by their attributes."""
    callbacks = member.extra.get("callbacks", {})
    kept = {name: _callback_tree(value) for name, value in callbacks.items()}
    rest = {k: v for k, v in member.extra.items() if k != "callbacks"}
    tree = {name: getattr(member, name) for name in vars(member)}
    return {**tree, "extra": {**rest, "callbacks": kept} if kept else rest}


def member_from_tree(tree, net, data) -> MemberState:
    """Return the member that :func:`member_tree` was given."""
    member = MemberState(**tree)
    fresh = restore(net, member, from_file=True)
    if "callbacks" in member.extra:
        kept = _callbacks(dict(fresh.callbacks_), net, member, data)
        member.extra = {**member.extra, "callbacks": kept}
    return member


def _callback_tree(value):
    """Return the state of a scheduler, or the attributes of a callback."""
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


def _callbacks(fresh, net, member, data):
    """Return the callbacks of a member, new ones with their attributes restored.

    ``on_train_begin`` creates attributes that are not plain, such as functions and
    scorers; numbers and tensors are set from the tree. Warn if any attribute then
    differs.
    """
    trees = member.extra["callbacks"]
    kept = {}
    for name, tree in trees.items():
        if "scheduler" in tree:
            kept[name] = _running(tree["scheduler"], fresh.get(name))
        elif name in fresh:
            _restore_callback(
                fresh[name], tree, name=name, net=net, member=member, data=data
            )
            kept[name] = fresh[name]
    return kept


def _restore_callback(callback, tree, *, name, net, member, data):
    own = restore(net, member)
    own_files(callback, member.index)
    with random_stream(own.device, seed=epoch_seed(member.seed, BEFORE_TRAINING)):
        callback.on_train_begin(own, X=data.X, y=data.y)
    running = _running(tree["plain"], callback)
    vars(callback).update(running)
    left_out = {k: describe(v) for k, v in tree["plain"].items() if k not in running}
    lost = [
        key
        for key, text in (tree["other"] | left_out).items()
        if not hasattr(callback, key) or describe(getattr(callback, key)) != text
    ]
    if lost:
        warnings.warn(
            f"Attributes of the callback {name!r} ({type(callback).__name__}) of "
            f"member {member.index} start again, because a checkpoint cannot store "
            f"them: {', '.join(lost)}.",
            SharpBalanceWarning,
            stacklevel=2,
        )


def _running(attributes, callback) -> dict[str, Any]:
    """Return the attributes that training changes, from a folder of a stranger.

    Text is left out, because it may name a file that the callback writes or deletes;
    so are arguments of the constructor, and names of methods.
    """
    kind = type(callback)
    fixed = {*inspect.signature(kind).parameters}
    return {
        name: value
        for name, value in attributes.items()
        if name not in fixed
        and not callable(getattr(kind, name, None))
        and not _has_text(value)
    }


def _has_text(value):
    if isinstance(value, dict):
        has_path = any(isinstance(k, str) and not k.isidentifier() for k in value)
        return has_path or any(map(_has_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind not in "biufc"
    return isinstance(value, str)
