"""What a member is between two phases: plain values that travel between processes."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.base import clone
from torch.nn.parameter import is_lazy

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceError
from sklearn_sharpbalance.members.own_settings import own_net
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = [
    "MemberState",
    "initial_state",
    "loose_buffers",
    "put_buffers",
    "restore",
    "state_of",
    "with_versions",
]


@dataclass
class MemberState:
    """A member between two phases.

    Attributes
    ----------
    index : int
        Position in the ensemble.
    seed : int
        Source of everything random in this member.
    module : dict of str to Tensor
        State of the module, on the CPU.
    optimizer : dict or None
        State of the optimizer; None before the first step.
    history : list of dict
        One record per epoch.
    extra : dict
        What an engine must carry over: state of callbacks and of a scheduler, buffers
        of the criterion, and those of the module that are not part of its state.
    stopped : bool
        Whether a callback asked this member to stop.
    """

    index: int
    seed: int
    module: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False


def initial_state(net, index, seed):
    """State of a member that has not trained: weights drawn from its seed."""
    net = own_net(net, index)
    with random_stream(net.device, seed=seed):
        _initialize(net)
    module = to_cpu(net.module_.state_dict())
    return MemberState(index, seed, module, extra=loose_buffers(net))


def _initialize(net):
    """Build the module and the optimizer for the first time."""
    try:
        net.initialize()
    except SharpBalanceError:
        raise
    except (TypeError, ValueError) as error:
        module = getattr(net, "module__module", net.module)
        name = getattr(module, "__name__", type(module).__name__)
        raise InvalidInputError(
            f"A member cannot be made of {name}: {in_a_sentence(error)}. Check its "
            "arguments, which go by estimator__module__..., and that it has weights to "
            "train."
        ) from error
    weights = list(net.module_.parameters())
    if any(map(is_lazy, weights)):
        raise InvalidInputError(
            "A member cannot be made of lazy layers, which find their size in their "
            "first batch: weights are drawn, kept and compared before that. Give the "
            "module's layers their sizes, by n_features or in_channels."
        )
    if not any(weight.requires_grad for weight in weights):
        raise InvalidInputError(
            f"The module of a member has no weights to train: {len(weights)} weights, "
            "all with requires_grad=False. Leave some of them trainable."
        )


def restore(net, state):
    """An initialised copy of ``net`` for the given member, in its state."""
    net = own_net(net, state.index)
    with random_stream(net.device, seed=state.seed):
        # Weights are drawn and overwritten. What else the module draws is as it was.
        net.initialize()
    net.module_.load_state_dict(with_versions(state.module, net.module_))
    put_buffers(net.module_, state.extra.get("buffers", {}), net.device)
    put_buffers(net.criterion_, state.extra.get("criterion", {}), net.device)
    if torch.device(net.device).type == "cuda":
        net.module_.to(memory_format=torch.channels_last)  # what tensor cores want
    net.history.extend(dict(record, batches=[]) for record in state.history)
    for group in net.optimizer_.param_groups:
        group["initial_lr"] = group["lr"]
    if state.optimizer is not None:
        # A copy: torch takes tensors over as they are, and steps change them in place.
        net.optimizer_.load_state_dict(to_cpu(state.optimizer))
    return net


def with_versions(weights, module):
    """Weights as the module's own state dict: layers may ask for their version."""
    weights = OrderedDict(weights)
    weights._metadata = module.state_dict()._metadata
    return weights


def capture(net, state, **changes):
    """New state of a member after ``net`` trained on from ``state``."""
    extra = {**changes.pop("extra", {}), **loose_buffers(net)}
    return MemberState(
        state.index,
        state.seed,
        to_cpu(net.module_.state_dict()),
        to_cpu(net.optimizer_.state_dict()),
        [{k: v for k, v in row.items() if k != "batches"} for row in net.history],
        extra,
        **changes,
    )


def state_of(net, index=0, seed=0):
    """State of a fitted net, as a member of its own."""
    return capture(net, MemberState(index, seed, {}))


def loose_buffers(net):
    """Buffers that no state dict of the module has, as entries of a member's extra."""
    saved, criterion = net.module_.state_dict(), net.criterion_
    loose = {k: to_cpu(v) for k, v in net.module_.named_buffers() if k not in saved}
    found = {"buffers": loose}
    if isinstance(criterion, torch.nn.Module):
        found["criterion"] = {k: to_cpu(v) for k, v in criterion.named_buffers()}
    return {name: buffers for name, buffers in found.items() if buffers}


def put_buffers(module, buffers, device):
    """Give a module the buffers that :func:`loose_buffers` found in its like."""
    layers = dict(module.named_modules()) if buffers else {}
    for path, value in buffers.items():
        layer, _, name = path.rpartition(".")
        if layer not in layers:
            continue
        own = value.to(device, copy=True)
        if name in layers[layer]._buffers:
            setattr(layers[layer], name, own)
        else:  # a layer may make its buffer in a forward pass only
            layers[layer].register_buffer(name, own, persistent=False)


def unfitted(net):
    """A copy of the net's settings; its module class is shared, not copied."""
    return clone(net)


def to_cpu(tree):
    """Copy of nested containers with every tensor detached on the CPU."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: to_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(to_cpu(value) for value in tree)
    return tree
