"""Objects in model files: by a name from a short list, never by code.

A file may name classes of this package, torch's layers and optimizers, and skorch's
net. Nothing else is ever imported or called on the word of a file: what a user wrote,
the user passes again.
"""

import importlib
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance import networks
from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.members.averaging import WeightAveraging
from sklearn_sharpbalance.members.net import BoundOptimizer

__all__ = ["SPECIAL_TAGS", "name_of", "named", "special_value"]

_ESTIMATOR_FOLDERS = ("sharpness", "selection", "ensemble.aggregation")
# Folder to look in, and what a class found there must be.
_FOLDERS: dict[str, type] = {
    "torch.nn": nn.Module,
    "torch.optim": torch.optim.Optimizer,
    "skorch": NeuralNetClassifier,
    "sklearn_sharpbalance.networks": nn.Module,
    "sklearn_sharpbalance.optim": torch.optim.Optimizer,
    **{f"sklearn_sharpbalance.{name}": BaseEstimator for name in _ESTIMATOR_FOLDERS},
}
_FACTORIES = {
    f"sklearn_sharpbalance.networks.{name}": getattr(networks, name)
    for name in networks.__all__
    if name not in ("default_network", "finetune")  # no networks by themselves
}
_OWN = {"member_module": MemberModule}


def named(name: str) -> Any:
    """The class or network factory of a name; refuses all but those of the list.

    Examples
    --------
    >>> named("torch.nn.ReLU")
    <class 'torch.nn.modules.activation.ReLU'>
    """
    if name in _OWN or name in _FACTORIES:
        return {**_OWN, **_FACTORIES}[name]
    folder, _, last = str(name).rpartition(".")
    if folder not in _FOLDERS or not last.isidentifier() or last.startswith("_"):
        raise ValueError(f"it names {name!r}, which a file may not name.")
    found = getattr(importlib.import_module(folder), last, None)
    if not isinstance(found, type) or not issubclass(found, _FOLDERS[folder]):
        raise ValueError(f"it names {name!r}, which a file may not name.")
    return found


def name_of(value: Any) -> str | None:
    """Name by which :func:`named` finds a class again; None if it does not."""
    for name, known in {**_OWN, **_FACTORIES}.items():
        if known is value:
            return name
    if not isinstance(value, type):
        return None
    last = value.__name__
    for folder, kind in _FOLDERS.items():
        if issubclass(value, kind):
            found = getattr(importlib.import_module(folder), last, None)
            if found is value:
                return f"{folder}.{last}"
    return None


def special_value(value: Any) -> tuple[str, Any] | None:
    """Tag and plain value for an object that a file may name."""
    name = name_of(value)
    if name is not None:
        return "$class", name
    if isinstance(value, torch.device):
        return "$device", str(value)
    if isinstance(value, np.random.RandomState):
        return "$random_state", value.get_state(legacy=False)
    if type(value) is WeightAveraging:
        return "$averaging", asdict(value)
    if isinstance(value, BoundOptimizer) and not value.args and name_of(value.func):
        return "$bound", (name_of(value.func), dict(value.keywords))
    name = name_of(type(value))
    if name is not None and isinstance(value, BaseEstimator):
        return "$object", (name, value.get_params(deep=False))
    return None


def _random_state(state):
    random_state = np.random.RandomState()
    random_state.set_state(state)
    return random_state


def _object(value):
    name, params = value
    cls = named(name)
    if not issubclass(cls, BaseEstimator):
        raise ValueError(f"it makes an object of {name!r}, which a file may not.")
    return cls(**params)


def _bound(value):
    name, options = value
    optimizer = named(name)
    kind = torch.optim.Optimizer
    if not isinstance(optimizer, type) or not issubclass(optimizer, kind):
        raise ValueError(f"it takes {name!r} for an optimizer.")
    return BoundOptimizer(optimizer, **options)


def _averaging(value):
    return WeightAveraging(**value)


SPECIAL_TAGS = {
    "$class": named,
    "$device": torch.device,
    "$random_state": _random_state,
    "$averaging": _averaging,
    "$object": _object,
    "$bound": _bound,
}
