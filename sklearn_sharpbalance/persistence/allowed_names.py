"""Rules on the content of a model file: objects by name, settings, fitted values.

A file may name classes of this package, torch's layers and optimizers, and skorch's
net. Nothing else that a file names is imported or called: the user passes the user's
own objects to ``load`` again. ``save`` and ``load`` use the same rules for settings:
process counts, folders and options of readers are never part of a file.
"""

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance import networks
from sklearn_sharpbalance._parameters import names_where
from sklearn_sharpbalance._validation import Integral
from sklearn_sharpbalance.exceptions import ModelFileError
from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.members.net import BoundOptimizer
from sklearn_sharpbalance.members.weights import WeightAveraging

# Parameters of an ensemble that a file never sets: processes and folders. A joblib
# cache in `memory` is pickle, which runs code when it is read.
OF_MACHINE = tuple(names_where(in_file=False))
# Parameters of a skorch net that a file may set. skorch makes any other keyword an
# attribute of the net; torch_load_kwargs decide whether torch.load runs pickle, and
# options of iterators start processes.
_NET_PARAMS = {
    *("batch_size", "callbacks", "classes", "criterion", "device", "lr", "max_epochs"),
    *("module", "optimizer", "predict_nonlinearity", "use_caching", "verbose"),
    "warm_start",
}
_NET_PREFIXES = ("module__", "criterion__", "optimizer__", "callbacks__")
# A compiler is started by the user, not by a file.
_COMPILERS = ("estimator__compile", "estimator__module__compile")
# As a whole network, a file may only name nn.Linear and those of this package: others
# of torch can take any time to be built, such as a TransformerEncoder of many layers.
_OF_NETWORK = ("estimator", "estimator__module", "estimator__module__module")
_MAX_COUNT = 10**6  # epochs, members, draws
_SEEDS = ("seed", "random_state")
# Names and values of arguments that code of the user may open as a file.
_FILE_NAME = re.compile(
    r"(^|_)(path|file|filename|dir|directory|folder|root|url|uri|cache|checkpoint|ckpt"
    r"|pretrained|weights)s?$",
    re.IGNORECASE,
)
_FILE_VALUE = re.compile(r"[/\\]|^~|\.[A-Za-z]\w*$")

# Fitted attributes that are stored in a form of their own.
PARTS = {
    *("net_", "estimators_", "heads_", "predictors_", "aggregation_"),
    *("input_format_", "engine_", "trunk_"),
}

_ESTIMATOR_FOLDERS = ("sharpness", "selection", "aggregation.rules")
# Modules to search, and the required base class of classes found there.
_FOLDERS: dict[str, type] = {
    "torch.nn": nn.Module,
    "torch.optim": torch.optim.Optimizer,
    "skorch": NeuralNetClassifier,
    "sklearn_sharpbalance.networks": nn.Module,
    "sklearn_sharpbalance.optim": torch.optim.Optimizer,
    **{f"sklearn_sharpbalance.{name}": BaseEstimator for name in _ESTIMATOR_FOLDERS},
}
_OWN = {"member_module": MemberModule} | {
    f"sklearn_sharpbalance.networks.{name}": getattr(networks, name)
    for name in networks.__all__
    if name not in ("default_network", "finetune")  # these are not networks
}


def named(name: str) -> Any:
    """Return the class or network factory of a name; raise if it is not allowed."""
    if name in _OWN:
        return _OWN[name]
    folder, _, last = str(name).rpartition(".")
    found = None
    if folder in _FOLDERS and last.isidentifier() and not last.startswith("_"):
        found = getattr(importlib.import_module(folder), last, None)
    if not isinstance(found, type) or not issubclass(found, _FOLDERS[folder]):
        raise ValueError(f"it names {name!r}, which a file may not name.")
    return found


def name_of(value: Any) -> str | None:
    """Return the name by which :func:`named` finds a class; None if there is none."""
    names = [name for name, known in _OWN.items() if known is value]
    if isinstance(value, type):
        last = value.__name__
        names += [
            f"{folder}.{last}"
            for folder, kind in _FOLDERS.items()
            if issubclass(value, kind)
            and getattr(importlib.import_module(folder), last, None) is value
        ]
    return names[0] if names else None


def special_value(value: Any) -> tuple[str, Any] | None:
    """Return tag and plain value for an object that a file may name, else None."""
    name = name_of(value)
    if name is not None:
        return "$class", name
    if isinstance(value, torch.device):
        return "$device", str(value)
    if type(value) is WeightAveraging:
        return "$averaging", asdict(value)
    if isinstance(value, BoundOptimizer) and not value.args and name_of(value.func):
        return "$bound", (name_of(value.func), dict(value.keywords))
    name = name_of(type(value))
    if name is not None and _is_made_by_files(type(value)):
        return "$object", (name, value.get_params(deep=False))
    return None


def _is_made_by_files(cls):
    """Return whether a file may make objects: not nets, nor what calls a function."""
    if not issubclass(cls, BaseEstimator) or issubclass(cls, NeuralNetClassifier):
        return False
    return "func" not in inspect.signature(cls).parameters


def _object(value):
    name, params = value
    cls = named(name)
    if not _is_made_by_files(cls):
        raise ValueError(f"it makes an object of {name!r}, which a file may not.")
    return cls(**params)


def _bound(value):
    name, options = value
    optimizer = named(name)
    kind = torch.optim.Optimizer
    if not isinstance(optimizer, type) or not issubclass(optimizer, kind):
        raise ValueError(f"it takes {name!r} for an optimizer.")
    return BoundOptimizer(optimizer, **options)


SPECIAL_TAGS = {
    "$class": named,
    "$device": torch.device,
    "$averaging": lambda value: WeightAveraging(**value),
    "$object": _object,
    "$bound": _bound,
}


def is_left_out(name: str) -> bool:
    """Return whether a parameter, such as ``estimator__lr``, is never part of a file.

    Examples
    --------
    >>> is_left_out("memory"), is_left_out("estimator__torch_load_kwargs")
    (True, True)
    >>> is_left_out("rho"), is_left_out("estimator__module__hidden")
    (False, False)
    """
    part, _, of_net = name.partition("__")
    if name in _COMPILERS:
        return True
    if part == "estimator" and of_net:
        return of_net not in _NET_PARAMS and not of_net.startswith(_NET_PREFIXES)
    return name in OF_MACHINE


def is_passed_again(name: str, value: Any) -> bool:
    """Return whether a file may only name a parameter that the user passes to load.

    These are options of callbacks, which may be folders to read from, strings that
    name a file or a URL, counts beyond a million, and torch's own networks.
    """
    if name.startswith("estimator__callbacks__"):
        return value is not None  # None removes a callback
    if isinstance(value, type) and name in (*_OF_NETWORK, "shared_trunk"):
        is_of_torch = str(name_of(value)).startswith("torch.")
        return is_of_torch and value is not nn.Linear
    return _names_a_file(name, value) or _is_endless(name, value)


def _is_endless(name, value):
    """Return whether a setting has a count that no training would end with."""
    if name.startswith("estimator__module__") or name.endswith(_SEEDS):
        return False  # the size of a network is compared with its weights
    if isinstance(value, BaseEstimator):
        value = value.get_params(deep=False)
    if isinstance(value, Mapping):
        return any(_is_endless(str(key), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_is_endless(name, item) for item in value)
    return isinstance(value, Integral) and abs(int(value)) > _MAX_COUNT


def _names_a_file(name, value):
    if name.endswith("param_groups"):  # patterns of weights, such as "first.bias"
        return False
    if isinstance(value, Mapping):
        return any(_names_a_file(str(key), item) for key, item in value.items())
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    if isinstance(value, list | tuple):
        return any(_names_a_file(name, item) for item in value)
    is_text = isinstance(value, str)
    return is_text and bool(_FILE_NAME.search(name) or _FILE_VALUE.search(value))


def shown(value: Any) -> str:
    """Return a short text of a value for a message, on one line."""
    return " ".join(short_repr(value).split())


def check_setting(name: str, entry: Mapping[str, Any]) -> None:
    """Raise if the entry of a file sets a parameter of an ensemble that it may not."""
    value = entry.get("value")
    if is_left_out(name) or is_passed_again(name, value):
        raise ModelFileError(
            f"it sets {name} to {shown(value)}, which a model file may not set: a fit "
            "could read files, start processes or run code by it. Do not use a file "
            f"that you do not trust. Set {name} yourself, by load or by set_params."
        )
