"""Settings of single members, besides those that all members share.

The shared net has them in a list by the member's position, so that they are part of its
pickle, hash and file.
"""

from typing import Any

from sklearn.base import clone

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "different_settings",
    "give_settings",
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
    "criterion__reduction",
    "criterion__reduce",
    "criterion__size_average",
}


def give_settings(net, settings: list[dict[str, Any]]):
    """Set ``settings[i]`` for member i, in place of the shared settings.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; changed in place.
    settings : list of dict
        Names and values as in ``net.set_params``.
    """
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
        if not is_own_name(name):  # a model file may have any name
            raise InvalidInputError(f"{name!r} cannot be a setting of one member.")
    return net.set_params(**every[member], module__member_params=None)


def own_nets(net) -> list:
    """Return one net per member if their settings differ, else the shared net."""
    return [own_net(net, i) for i in range(len(own_settings(net)))] or [net]


def is_own_name(name: str) -> bool:
    """Whether a setting of this name may differ between members."""
    return name == "lr" or (name.startswith(PREFIXES) and name not in RESERVED)


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
