"""``member_params``: settings of single members, besides those that all members share.

The shared net has them in a list by the member's position, so that they are part of its
pickle, hash and file.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone
from torch import nn

from sklearn_sharpbalance._validation import Interval, Real
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "different_settings",
    "give_settings",
    "member_settings",
    "own_net",
    "own_nets",
    "own_settings",
    "same_setting",
]

PREFIXES = ("module__", "optimizer__", "criterion__")
# Set by the ensemble, equal for all members, or about how torch computes an update.
RESERVED = {
    "module__module",
    "module__mean",
    "module__scale",
    "module__clip",
    "module__pieces",
    "module__compile",
    "module__member_params",
    "optimizer__base_optimizer",
    "optimizer__lr",
    "optimizer__rho",
    "optimizer__stacked",
    "optimizer__params",
    "optimizer__maximize",
    "optimizer__differentiable",
    "optimizer__capturable",
    "optimizer__foreach",
    "optimizer__fused",
    "criterion__weight",
    "criterion__reduction",
    "criterion__reduce",
    "criterion__size_average",
}


def member_settings(member_params, n_members: int, net) -> list[dict] | None:
    """Return one dictionary of settings per member; None if all share the net's."""
    if member_params is None:
        return None
    if len(member_params) != n_members:
        raise InvalidInputError(
            f"member_params has {len(member_params)} dictionaries for "
            f"n_estimators={n_members} members. Pass one for each member."
        )
    for i, each in enumerate(member_params):
        if not isinstance(each, Mapping):
            raise InvalidInputError(
                f"member_params[{i}] must be a dictionary, got {each!r}."
            )
        _check_names(each, net)
        _check_rate(each.get("lr", 1.0))
    return [
        {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in each.items()
        }
        for each in member_params
    ]


def _check_rate(rate):
    positive = Interval(Real, 0, None, closed="neither")
    if not (positive.is_satisfied_by(rate) and np.isfinite(rate)):
        raise InvalidInputError(
            f"lr in member_params must be a number greater than 0, got {rate!r}."
        )


def _check_names(settings, net):
    """Raise if a setting may not differ between members, or would not be used."""
    for name in settings:
        part = str(name).partition("__")[0]
        if not _is_own_name(str(name)):
            hint = "One radius per member is rho=[...]. " if name == "rho" else ""
            raise InvalidInputError(
                f"{name!r} in member_params cannot be a setting of one member. {hint}"
                "Pass lr, or an argument of the network, the optimizer or the "
                "criterion: module__..., optimizer__... or criterion__...."
            )
        given = {"module": net.module__module, "criterion": net.criterion}.get(part)
        if isinstance(given, nn.Module):
            raise InvalidInputError(
                f"{name} in member_params is not used: the {part} is an instance of "
                f"{type(given).__name__}. Pass its class to give it arguments."
            )
    if "lr" in settings and hasattr(net, "optimizer__lr"):
        raise InvalidInputError(
            "lr in member_params has no effect with estimator__optimizer__lr. Set "
            "lr=... for the rate of the other members instead."
        )


def _is_own_name(name: str) -> bool:
    """Whether a setting of this name may differ between members."""
    return name == "lr" or (name.startswith(PREFIXES) and name not in RESERVED)


def give_settings(net, settings: list[dict[str, Any]]):
    """Set ``settings[i]`` of the shared net for member i, in place."""
    return net.set_params(module__member_params=tuple(settings))


def own_settings(net) -> tuple[dict[str, Any], ...]:
    """Return the settings of each member; empty if all share the net's."""
    return getattr(net, "module__member_params", None) or ()


def own_net(net, member: int):
    """Return a copy of the shared net with the settings of one member."""
    every = own_settings(net)
    net = clone(net)
    if not every:
        return net
    for name in every[member]:
        if not _is_own_name(name):  # a model file may have any name
            raise InvalidInputError(f"{name!r} cannot be a setting of one member.")
    return net.set_params(**every[member], module__member_params=None)


def own_nets(net) -> list:
    """Return one net per member if their settings differ, else the shared net."""
    return [own_net(net, i) for i in range(len(own_settings(net)))] or [net]


def different_settings(net) -> list[str]:
    """Return the names of settings that differ between members."""
    every = own_settings(net)
    names = sorted({name for settings in every for name in settings})
    return [
        name
        for name in names
        if not all(
            name in settings and same_setting(settings[name], every[0].get(name))
            for settings in every
        )
    ]


def same_setting(a: Any, b: Any) -> bool:
    """Whether two values are identical or equal; False if they cannot be compared."""
    try:
        return a is b or bool(a == b)
    except Exception:  # comparing arrays or other objects may raise any error
        return False
