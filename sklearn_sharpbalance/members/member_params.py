"""``member_params``: settings of single members, besides those that all members share.

The shared net has them in a list by the member's position, so that they are part of its
pickle, hash and file.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterSampler
from torch import nn

from sklearn_sharpbalance._validation import Interval, Real
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "different_settings",
    "draw_settings",
    "give_settings",
    "member_settings",
    "own_net",
    "own_nets",
    "own_settings",
    "same_setting",
    "valid_names",
]

# Arguments of modules that are filled in from the data.
SIZE_NAMES = {
    "n_classes": ("n_classes", "num_classes", "n_outputs", "out_features"),
    "n_features": ("n_features", "n_inputs", "in_features", "input_dim"),
    "in_channels": ("in_channels", "n_channels", "num_channels"),
}
# Names that are not in member_params, and what to use instead.
ELSEWHERE = {
    "rho": "One radius per member is rho=[...].",
    "optimizer__rho": "One radius per member is rho=[...].",
    "optimizer__lr": "The learning rate is lr.",
    "criterion__weight": "Weights of classes are class_weight, the same for all.",
    "optimizer": "All members have one optimizer class: set optimizer=...",
    "module": "All members have one module class; its arguments may differ.",
    "batch_size": "Members share the number of batches: set batch_size=...",
    "max_epochs": "Members train for the same epochs: set max_epochs=...",
    "random_state": "Members draw their seeds from the random_state of the ensemble.",
}


def member_settings(member_params, net, seeds: Sequence[int]) -> list[dict] | None:
    """Return one dictionary of settings per member; raise if the net has none such.

    Parameters
    ----------
    member_params : None, sequence of dict, or dict of distributions
    net : NeuralNetClassifier
        From :func:`member_net`.
    seeds : sequence of int
        Seeds of the members; draws depend on nothing else.

    Returns
    -------
    settings : list of dict or None
    """
    if member_params is None:
        return None
    if isinstance(member_params, Mapping):
        _check_distributions(member_params)
        settings = [draw_settings(member_params, seed) for seed in seeds]
    else:
        settings = _one_each(member_params, len(seeds))
    names = sorted({name for each in settings for name in each}, key=str)
    _check_names(names, net)
    for each in settings:
        _check_rate(each)
    return settings


def draw_settings(distributions: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Draw the settings of one member with scikit-learn's ``ParameterSampler``.

    Examples
    --------
    >>> draw_settings({"lr": [0.1], "module__hidden": [(8, 8)]}, seed=0)
    {'lr': 0.1, 'module__hidden': (8, 8)}
    """
    # Not the stream of the member's weights or of its epochs.
    bits = np.random.MT19937(np.random.SeedSequence(seed, spawn_key=(0,)))
    rng = np.random.RandomState(bits)
    (drawn,) = ParameterSampler(dict(distributions), 1, random_state=rng)
    return {name: _plain(drawn[name]) for name in distributions}


def _one_each(member_params, n_members):
    if len(member_params) != n_members:
        raise InvalidInputError(
            f"member_params has {len(member_params)} dictionaries for "
            f"n_estimators={n_members} members. Pass one for each member, or a "
            "dictionary of distributions to draw from."
        )
    for i, each in enumerate(member_params):
        if not isinstance(each, Mapping):
            raise InvalidInputError(
                f"member_params[{i}] must be a dictionary, got {each!r}."
            )
        drawn = [name for name, value in each.items() if hasattr(value, "rvs")]
        if drawn:
            raise InvalidInputError(
                f"member_params[{i}][{drawn[0]!r}] is a distribution. Pass a value, or "
                "one dictionary of distributions for all members."
            )
    return [
        {name: _plain(value) for name, value in each.items()} for each in member_params
    ]


def _check_distributions(distributions):
    for name, value in distributions.items():
        is_list = isinstance(value, Sequence | np.ndarray) and not isinstance(
            value, str | bytes
        )
        if hasattr(value, "rvs") or (is_list and len(value)):
            continue
        raise InvalidInputError(
            f"member_params[{name!r}] must be a distribution with a method rvs (as in "
            f"scipy.stats) or a sequence of values to choose from, got {value!r}."
        )


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value


def _check_rate(settings):
    if "lr" in settings and not _is_rate(settings["lr"]):
        raise InvalidInputError(
            "lr in member_params must be a number greater than 0, got "
            f"{settings['lr']!r}."
        )


def _is_rate(value):
    positive = Interval(Real, 0, None, closed="neither")
    return positive.is_satisfied_by(value) and bool(np.isfinite(value))


def _check_names(names: Iterable[Any], net) -> None:
    """Raise if a name is unknown, or may not differ between members."""
    known = valid_names(net)
    for name in names:
        prefix = str(name).partition("__")[0] + "__"
        takes_any = f"{prefix}*" in known and is_own_name(str(name))
        if name not in known and not takes_any:
            raise InvalidInputError(
                f"Unknown name {name!r} in member_params. {_hint(name, net, known)}"
                f"Names are those after estimator__: {', '.join(known)}."
            )
    if "lr" in names and hasattr(net, "optimizer__lr"):
        raise InvalidInputError(
            "lr in member_params has no effect with estimator__optimizer__lr. Set "
            "lr=... for the rate of the other members instead."
        )


def _hint(name, net, known):
    name = str(name).removeprefix("estimator__")
    if name in ELSEWHERE:
        return f"{ELSEWHERE[name]} "
    if name.startswith("module__") and isinstance(net.module__module, nn.Module):
        return "The network is an instance: pass its class to give it arguments. "
    if name.startswith("criterion__") and isinstance(net.criterion, nn.Module):
        return "The criterion is an instance: pass its class to give it arguments. "
    last = {each.rpartition("__")[2]: each for each in known}
    close = last.get(name) or next(iter(get_close_matches(name, known, 1)), None)
    return f"Did you mean {close!r}? " if close else ""


def valid_names(net) -> list[str]:
    """Return the names of a net's settings that may differ between members.

    Parameters
    ----------
    net : NeuralNetClassifier
        From :func:`member_net`.

    Returns
    -------
    names : list of str
        ``module__*`` means that the module takes any argument.
    """
    names = ["lr"]
    if not isinstance(net.module__module, nn.Module):
        sizes = {name for each in SIZE_NAMES.values() for name in each}
        names += _arguments("module", net.module__module, leave_out=sizes)
    base = getattr(net, "optimizer__base_optimizer", None)
    own = _arguments("optimizer", net.optimizer)
    if base is not None:  # the wrapper passes all arguments to it
        own = [name for name in own if name != "optimizer__*"]
        own += [name for name in _arguments("optimizer", base) if name not in own]
    names += own
    if not isinstance(net.criterion, nn.Module):
        names += _arguments("criterion", net.criterion, leave_out={"weight"})
    return names


def _arguments(prefix: str, function: Callable, leave_out=()) -> list[str]:
    """Return the names of a function's arguments that may differ, with a prefix."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [f"{prefix}__*"]
    names = [
        f"{prefix}__{'*' if each.kind is each.VAR_KEYWORD else each.name}"
        for each in parameters
        if each.kind is not each.VAR_POSITIONAL and each.name not in leave_out
    ]
    return [name for name in names if is_own_name(name)]


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
