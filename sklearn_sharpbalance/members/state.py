"""The state of a member between two phases: plain values that can be pickled."""

import fnmatch
import inspect
import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from sklearn_sharpbalance._validation import in_a_sentence, printable
from sklearn_sharpbalance.exceptions import (
    InvalidInputError,
    ModelFileError,
    SharpBalanceError,
)
from sklearn_sharpbalance.members.member_params import own_net
from sklearn_sharpbalance.optim.look_sam import COUNT
from sklearn_sharpbalance.runtime.rng import WithoutDraws, random_stream
from sklearn_sharpbalance.runtime.torch_internals import (
    own_buffers,
    step_of,
    with_state_metadata,
)

__all__ = [
    "MemberState",
    "capture",
    "initial_member",
    "initial_state",
    "loose_buffers",
    "put_buffers",
    "restore",
    "state_of",
    "to_cpu",
]

PACKAGE = __name__.partition(".")[0] + "."
# How torch computes a step, which does not change what it keeps.
KERNELS = {"foreach", "fused", "capturable", "differentiable"}


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
        Further state for the next phase: of callbacks and of a scheduler, buffers of
        the criterion, and buffers of the module that are not in its state dict.
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


def initial_member(net, index, seed):
    """Return the net and the state of a member with weights drawn from its seed."""
    net = own_net(net, index)
    with random_stream(net.device, seed=seed):
        _initialize(net)
    module = to_cpu(net.module_.state_dict())
    return net, MemberState(index, seed, module, extra=loose_buffers(net))


def initial_state(net, index, seed):
    """Return the state of an untrained member, with weights drawn from its seed."""
    return initial_member(net, index, seed)[1]


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
            "arguments, estimator__module__..., and that it has weights to train."
        ) from error
    weights = list(net.module_.parameters())
    if any(map(is_lazy, weights)):
        raise InvalidInputError(
            "A member cannot be made of lazy layers, whose weights are drawn in the "
            "first batch, because members need their weights before. Pass the sizes of "
            "the module's layers, such as n_features or in_channels."
        )
    if not any(weight.requires_grad for weight in weights):
        raise InvalidInputError(
            f"The module of a member has no weights to train: {len(weights)} weights, "
            "all with requires_grad=False. Leave some of them trainable."
        )
    _check_groups(net)


def _check_groups(net):
    """Raise if a parameter group has no weights: skorch would ignore it."""
    names = [name for name, _ in net.get_all_learnable_params()]
    for key, groups in net.get_params(deep=False).items():
        if not key.endswith("__param_groups"):
            continue
        # A pattern that begins with "module." has two forms in a member.
        asked = {_outside(pattern) for pattern, _ in groups}
        found = {_outside(p) for p, _ in groups if fnmatch.filter(names, p)}
        if asked - found:
            raise InvalidInputError(
                f"estimator__{key} has the pattern {min(asked - found)!r}, but no "
                f"weight has such a name: {', '.join(map(_outside, names[:4]))}, ..., "
                f"{', '.join(map(_outside, names[-2:]))}."
            )


def _outside(name):
    return re.sub(r"^(module\.)+", "", name)


def restore(net, state, *, from_file=False):
    """Return an initialised copy of ``net`` with the state of a member.

    A state ``from_file`` may be a stranger's: that of its optimizer is checked.
    """
    net = own_net(net, state.index)
    module = getattr(net, "module__module", None)
    of_package = isinstance(module, type) and module.__module__.startswith(PACKAGE)
    # Draws take most of the time. Other draws of a user's module are repeated.
    drawing = WithoutDraws() if of_package else nullcontext()
    with random_stream(net.device, seed=state.seed), drawing:
        net.initialize()
    try:
        _restore(net, state, from_file)
    except Exception as error:  # of any kind, if a file was crafted
        raise ModelFileError(
            f"The state of member {state.index} does not fit its network: "
            f"{printable(in_a_sentence(error))}."
        ) from error
    return net


def _restore(net, state, from_file):
    """Set weights, buffers, history and momentum of an initialised net."""
    net.module_.load_state_dict(with_state_metadata(state.module, net.module_))
    put_buffers(net.module_, state.extra.get("buffers", {}), net.device)
    put_buffers(net.criterion_, state.extra.get("criterion", {}), net.device)
    if torch.device(net.device).type == "cuda":
        net.module_.to(memory_format=torch.channels_last)  # faster on tensor cores
    net.history.extend(dict(record, batches=[]) for record in state.history)
    for group in net.optimizer_.param_groups:
        group["initial_lr"] = group["lr"]
    if state.optimizer is not None:
        # Copy: torch keeps the same tensors, and steps change them in place.
        kept = _with_own_switches(net.optimizer_, to_cpu(state.optimizer))
        if from_file:
            _check_optimizer(net.optimizer_, kept)
        net.optimizer_.load_state_dict(kept)


def capture(net, state, **changes):
    """Return the state of a member whose ``net`` was trained from ``state``."""
    extra = {**changes.pop("extra", {}), **loose_buffers(net)}
    return MemberState(
        index=state.index,
        seed=state.seed,
        module=to_cpu(net.module_.state_dict()),
        optimizer=to_cpu(net.optimizer_.state_dict()),
        history=[
            {key: value for key, value in record.items() if key != "batches"}
            for record in net.history
        ],
        extra=extra,
        **changes,
    )


def state_of(net, index=0, seed=0):
    """Return the state of a fitted net, as that of a member."""
    return capture(net, MemberState(index, seed, {}))


def loose_buffers(net):
    """Return buffers that are in no state dict, for the ``extra`` of a state."""
    saved, criterion = net.module_.state_dict(), net.criterion_
    loose = {k: to_cpu(v) for k, v in net.module_.named_buffers() if k not in saved}
    found = {"buffers": loose}
    if isinstance(criterion, torch.nn.Module):
        found["criterion"] = {k: to_cpu(v) for k, v in criterion.named_buffers()}
    return {name: buffers for name, buffers in found.items() if buffers}


def put_buffers(module, buffers, device):
    """Set the buffers of a module to those from :func:`loose_buffers`."""
    if not buffers:
        return
    layers, saved = dict(module.named_modules()), module.state_dict()
    for path, value in buffers.items():
        layer, _, name = path.rpartition(".")
        if layer not in layers:
            continue
        if path in saved and saved[path].shape != value.shape:
            raise ValueError(f"{path} has shape {tuple(value.shape)}")
        own = value.to(device, copy=True)
        if name in own_buffers(layers[layer]):
            setattr(layers[layer], name, own)
        else:  # some layers make a buffer in their first forward pass
            layers[layer].register_buffer(name, own, persistent=False)


def to_cpu(tree):
    """Copy nested containers, with every tensor detached on the CPU."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: to_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(to_cpu(value) for value in tree)
    return tree


def _with_own_switches(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state for ``load_state_dict``, with the optimizer's switches and names.

    They say how torch computes a step, which differs between engines.
    """
    groups, own = state["param_groups"], optimizer.param_groups
    if len(groups) != len(own) or state.keys() != {"state", "param_groups"}:
        raise ValueError("it has other groups of weights")
    groups = [_options(stored, group) for stored, group in zip(groups, own)]
    return {"state": state["state"], "param_groups": groups}


def _check_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Raise ValueError unless a state is one that steps of the optimizer keep.

    torch compares no shapes, and its fused steps write as many numbers as the weights
    have.
    """
    numbers = set()
    for stored, group in zip(state["param_groups"], optimizer.param_groups):
        examples: dict[int, Any] = {}
        for number, weight in zip(stored["params"], group["params"], strict=True):
            numbers.add(number)
            if weight.ndim not in examples:
                examples[weight.ndim] = _example(optimizer, stored, weight.ndim)
            entries = state["state"].get(number, {})
            _check_entries(entries, weight, examples[weight.ndim], number)
    if state["state"].keys() - numbers:
        raise ValueError("it has more weights")


def _options(stored, own):
    """Return the options of a group; numbers may differ, switches and names may not."""
    kept = {"params": stored["params"]}
    for name, value in stored.items():
        kind = _kind(own.get(name, 0.0))
        if name == "params" or "switch" in str(kind):
            continue
        if _kind(value) != kind:
            raise ValueError(f"its option {name} is not of the type of a fit")
        kept[name] = value
    return {**own, **kept}


def _kind(value):
    """Return what an option is: a number, a switch or name, or a tuple of them."""
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    if isinstance(value, bool | str | NoneType):
        return "switch"
    if isinstance(value, Real):
        float(value)  # raises for integers beyond all floats
        return "number"
    is_rate = isinstance(value, Tensor) and value.numel() == 1
    return "number" if is_rate else type(value).__name__


def _example(optimizer, options, n_dims) -> dict[str, Tensor] | None:
    """Return what a step of torch's optimizer keeps for a weight of shape (2, 2, ...).

    None for an optimizer that the user wrote.
    """
    optimizer = getattr(optimizer, "base_optimizer", optimizer)
    kinds = type(optimizer).__mro__[: -len(Optimizer.__mro__)]
    kind = next((k for k in kinds if k.__module__.startswith("torch.optim")), None)
    if kind is None:
        return None
    accepted = inspect.signature(kind).parameters.keys() - KERNELS - {"params"}
    kept = optimizer.defaults | options
    weight = torch.nn.Parameter(torch.ones((2,) * max(n_dims, 1), device="cpu"))
    weight.grad = torch.ones_like(weight)
    example = kind([weight], **{k: v for k, v in kept.items() if k in accepted})
    step_of(example)  # without an import of torch's compiler
    return example.state[weight]


def _check_entries(entries, weight, example, number):
    """Raise unless the state of a weight is that of a step, or of no step."""
    if not isinstance(entries, dict):
        raise ValueError(f"the momentum of weight {number} is not a dictionary")
    if example is None:
        return
    entries = dict(entries)
    count = entries.pop(COUNT, 0)
    if type(count) is not int or not 0 <= count < 2**53:
        raise ValueError(f"{COUNT} of weight {number} is not a count")
    # A skipped step of a scaled loss leaves a weight without momentum.
    expected = example if entries.keys() & example.keys() else {}
    for name in {*expected, *entries}:
        value = entries.get(name)
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of weight {number} is missing")
        shape = _shape(weight, expected.get(name))
        is_number = value.is_floating_point() or (
            value.is_complex() and weight.is_complex()
        )
        if tuple(value.shape) != shape or not is_number:
            raise ValueError(
                f"{name} of weight {number} has shape {tuple(value.shape)} and type "
                f"{value.dtype}, not the {shape} of floats that a step keeps"
            )


def _shape(weight, example):
    """Return the shape of an entry; each 2 in that of the example is the weight's."""
    if example is None:
        return tuple(weight.shape)
    return tuple(w if n == 2 else 1 for n, w in zip(example.shape, weight.shape))
