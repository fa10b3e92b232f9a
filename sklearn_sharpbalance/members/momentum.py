"""Check the state of an optimizer before it is loaded.

torch compares no shapes, and its fused steps write as many numbers as the weights have.
"""

import inspect
from numbers import Real
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sklearn_sharpbalance.optim.look_sam import COUNT
from sklearn_sharpbalance.runtime.torch_internals import step_of

__all__ = ["checked_state"]

# How torch computes a step, which does not change what it keeps.
KERNELS = {"foreach", "fused", "capturable", "differentiable"}


def checked_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state for ``load_state_dict``; raise ValueError if it does not fit.

    Parameters
    ----------
    optimizer : Optimizer
        With the weights and options of the fit.
    state : dict
        As from ``optimizer.state_dict()``; may come from a stranger's file.

    Returns
    -------
    state : dict
        Options that are switches or names are those of ``optimizer``.

    Examples
    --------
    >>> optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    >>> state = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3)}
    >>> state = optimizer.state_dict() | {"state": {0: state}}
    >>> checked_state(optimizer, state)
    Traceback (most recent call last):
    ValueError: exp_avg_sq of weight 0 is missing
    """
    groups, own = state["param_groups"], optimizer.param_groups
    if len(groups) != len(own) or state.keys() != {"state", "param_groups"}:
        raise ValueError("it has other groups of weights")
    groups = [_options(*pair) for pair in zip(groups, own)]
    numbers = set()
    for stored, group in zip(groups, own):
        examples: dict[int, Any] = {}
        for number, weight in zip(stored["params"], group["params"], strict=True):
            numbers.add(number)
            if weight.ndim not in examples:
                examples[weight.ndim] = _example(optimizer, stored, weight.ndim)
            entries = state["state"].get(number, {})
            _check_entries(entries, weight, examples[weight.ndim], number)
    if state["state"].keys() - numbers:
        raise ValueError("it has more weights")
    return {"state": state["state"], "param_groups": groups}


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
    kinds = [cls for cls in type(optimizer).__mro__ if _is_of_torch(cls)]
    if not kinds:
        return None
    accepted = inspect.signature(kinds[0]).parameters.keys() - KERNELS
    kept = optimizer.defaults | options
    weight = torch.nn.Parameter(torch.ones((2,) * max(n_dims, 1), device="cpu"))
    weight.grad = torch.ones_like(weight)
    example = kinds[0](
        [weight], **{k: v for k, v in kept.items() if k in accepted - {"params"}}
    )
    step_of(example)  # without an import of torch's compiler
    return example.state[weight]


def _is_of_torch(cls):
    return cls is not Optimizer and cls.__module__.startswith("torch.optim")


def _check_entries(entries, weight, example, number):
    """Raise unless the state of a weight is that of a step, or of no step."""
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
