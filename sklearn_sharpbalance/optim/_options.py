"""Options of a parameter group: their keys and their checks."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from sklearn_sharpbalance._validation import Integral, Interval
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["check_group", "group_keys", "make_base", "member_count"]


def group_keys(
    names: Iterable[str], base_optimizer: Callable[..., Optimizer]
) -> dict[str, str]:
    """Return the key of each option in a parameter group: its name or ``sam_<name>``.

    The base optimizer reads the same groups, so an option that it has too
    (Adadelta's ``rho``, RMSprop's ``alpha``) needs another key.
    """
    try:
        taken = _arguments(base_optimizer)
    except (TypeError, ValueError):  # not hashable, or without a signature
        taken = frozenset()
    return {name: f"sam_{name}" if name in taken else name for name in names}


@lru_cache(maxsize=64)  # called for each member in each phase
def _arguments(base_optimizer: Callable[..., Optimizer]) -> frozenset[str]:
    return frozenset(inspect.signature(base_optimizer).parameters)


def make_base(
    base_optimizer: Callable[..., Optimizer],
    groups: list[dict[str, Any]],
    keys: Mapping[str, str],
    kwargs: Mapping[str, Any],
) -> Optimizer:
    """Return the base optimizer over ``groups`` (the same dict objects)."""
    if not callable(base_optimizer) or isinstance(base_optimizer, Optimizer):
        raise InvalidInputError(
            "base_optimizer must be a torch.optim.Optimizer class; got an object of "
            f"type {type(base_optimizer).__name__}. Pass the class, and its arguments "
            "by name: SAM(params, torch.optim.SGD, lr=0.1)."
        )
    base = base_optimizer(groups, **kwargs)
    # LBFGS and other sharpness-aware optimizers run further passes in a step.
    if not isinstance(base, Optimizer) or (
        isinstance(base, torch.optim.LBFGS) or hasattr(base, "perturbed")
    ):
        raise InvalidInputError(
            "base_optimizer must make a torch optimizer that only reads `.grad`; "
            f"got {type(base).__name__}. Use SGD, Adam, AdamW or the like."
        )
    clash = sorted(set(keys.values()) & set(base.defaults))
    if clash:
        raise InvalidInputError(
            f"{type(base).__name__} has an option {clash[0]!r} of its own, which the "
            "signature of base_optimizer does not show. Pass the class or a "
            "functools.partial of it, so that the two options get different names."
        )
    return base


def member_count(groups: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the size ``M`` of the leading axis in all stacked groups, None if none."""
    groups = list(groups)
    for group in groups:
        if not isinstance(group["stacked"], bool):
            raise InvalidInputError(
                f"stacked must be a bool; got {group['stacked']!r}."
            )
    params = [p for group in groups if group["stacked"] for p in group["params"]]
    if not params:
        return None
    sizes = {p.shape[0] if p.ndim else None for p in params}
    if len(sizes) > 1 or None in sizes:
        shapes = ", ".join(sorted({str(tuple(p.shape)) for p in params}))
        raise InvalidInputError(
            "Parameters of stacked groups need a leading member axis of a common size; "
            f"got shapes {shapes}. Put the others into a group that is not stacked."
        )
    return sizes.pop()


def check_group(
    group: dict[str, Any],
    rules: Mapping[str, Interval],
    keys: Mapping[str, str],
    members: int | None,
) -> None:
    """Check the options of a group and convert them so that they can be saved.

    ``members`` is the member count of all stacked groups, because a group without
    parameters does not show it.
    """
    for name, rule in rules.items():
        per_member = members if name == "rho" and group["stacked"] else None
        value = _checked(name, group[keys[name]], rule, per_member)
        if isinstance(value, Tensor) and group["params"]:
            value = value.to(group["params"][0].device)
        group[keys[name]] = value
    for key, value in group.items():
        if isinstance(value, np.generic):  # torch.load(weights_only=True) rejects it
            group[key] = value.item()


def _checked(
    name: str, value: Any, rule: Interval, members: int | None
) -> float | Tensor:
    """Return a number as int or float; a tensor, or one value per member, as tensor."""
    if isinstance(value, list | tuple | np.ndarray):
        value = torch.as_tensor(value, dtype=torch.get_default_dtype())
    entries = value.flatten().tolist() if isinstance(value, Tensor) else [value]
    wrong = [v for v in entries if not rule.is_satisfied_by(v)]
    if wrong:
        raise InvalidInputError(f"{name} must be {rule}; got {wrong[0]!r}.")
    if rule.type is Integral and len(entries) == 1:
        return int(entries[0])
    if not isinstance(value, Tensor):
        return float(value)
    if value.ndim and tuple(value.shape) != (members,):
        problem = f"{name} has shape {tuple(value.shape)}"
        if members is None:
            raise InvalidInputError(
                f"{problem}, but the group is not stacked. Pass one number."
            )
        raise InvalidInputError(
            f"{problem} for {members} stacked members. Pass one value or {members}."
        )
    return value
