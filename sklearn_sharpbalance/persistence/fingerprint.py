"""Short descriptions of data and parameters, equal in every process for equal values.

A checkpoint keeps them to know its own fit again, and to say by name what differs.
"""

import functools
import hashlib
import re
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset
from torch.utils.hooks import RemovableHandle

from sklearn_sharpbalance.data.training_data import n_rows
from sklearn_sharpbalance.persistence.code_identity import (
    MODULE_ATTRIBUTES,
    closed_over,
    code_name,
    held_by,
    is_installed,
)

__all__ = [
    "condense",
    "data_fingerprint",
    "describe",
    "describe_samples",
    "differences",
]

DEEPEST = 12
PLAIN = (bool, int, float, str, bytes, np.ndarray, np.generic, torch.Tensor)
LONGEST = 4000  # characters of one value in a checkpoint
SHOWN = 60  # characters of one value in a message
CACHE = re.compile("cache|memo", re.IGNORECASE)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe(value: Any, within: tuple[int, ...] = ()) -> str:
    """Text that is equal for equal values, whatever the process.

    Classes and functions go by their names, and by their code if it is not installed;
    arrays, tensors and modules by a digest; estimators, callbacks and
    other objects by their class and what they hold.

    Parameters
    ----------
    value : object
    within : tuple of int, default=()
        Identities of the containers and objects around it.

    Examples
    --------
    >>> describe({"rho": (0.1, None)})
    "{'rho': (0.1, None)}"
    >>> describe(torch.nn.ReLU)
    'torch.nn.modules.activation.ReLU'
    """
    if len(within) > DEEPEST or id(value) in within:
        return "..."
    if isinstance(value, np.generic):
        value = value.item()  # np.float64(0.1) is the same setting as 0.1
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {_digest(_bytes(value))}"
    if isinstance(value, type | torch.dtype | torch.device):
        return code_name(value) if isinstance(value, type) else str(value)
    within = (*within, id(value))
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _container(value, within)
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return _function(value, within)
    return _object(value, within)


def _container(value, within):
    def inner(item):
        return describe(item, within)

    if isinstance(value, Mapping):
        pairs = sorted((inner(k), inner(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    items = [inner(item) for item in value]
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(items)) + "}"
    return ("[{}]" if isinstance(value, list) else "({})").format(", ".join(items))


def _function(value, within):
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial({', '.join(describe(part, within) for part in parts)})"
    if isinstance(value, types.MethodType):
        return f"{describe(value.__self__, within)}.{value.__func__.__name__}"
    around = [describe(content, within) for content in closed_over(value)]
    return code_name(value) + (f"({', '.join(around)})" if around else "")


def _object(value, within):
    name = code_name(type(value))
    if isinstance(value, torch.nn.Module):
        return f"{name}[{_module_digest(value, within)}]"
    if hasattr(value, "to_numpy"):  # a table or column of pandas or polars
        names = list(map(str, getattr(value, "columns", ())))
        return f"{name}({names} {_array(value.to_numpy())})"
    if hasattr(value, "__array_interface__"):  # a picture of Pillow
        return f"{name}({_array(np.asarray(value))})"
    if hasattr(value, "rvs") and hasattr(value, "dist"):  # of scipy, frozen
        arguments = describe((value.args, value.kwds), within)
        return f"scipy.stats.{value.dist.name}{arguments}"
    if hasattr(value, "get_params"):
        held = value.get_params(deep=False)
    else:
        held = held_by(value)
    if held is None:
        return ADDRESS.sub("", repr(value))
    return f"{name}({describe(_lasting(held), within)})"


def _lasting(held):
    """What an object holds, without what it may keep for its own use meanwhile.

    Public attributes are all told. Of private ones, those are left out that fill or
    change while the object is used, so that one and the same object would be another
    after a fit: None and empty containers, which something is put into later; what is
    called a cache; dictionaries with other keys than strings, since a cache goes by
    the number of an item; files, locks, random generators and other objects of
    installed classes that neither are data nor can be called.
    """
    return {
        name: value
        for name, value in held.items()
        if not name.startswith("_")
        or (not _is_empty(value) and not CACHE.search(name) and _is_setting(value))
    }


def _is_empty(value):
    return value is None or (isinstance(value, Mapping | list | set) and not value)


def _is_setting(value, depth=0):
    """Whether a private value is of a kind that stays as it was set."""
    if value is None or isinstance(value, PLAIN):
        return True
    if depth > DEEPEST:
        return False
    if isinstance(value, Mapping):
        return all(
            isinstance(key, str) and _is_setting(item, depth + 1)
            for key, item in value.items()
        )
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_setting(item, depth + 1) for item in value)
    if isinstance(value, weakref.ref):
        return False
    is_data = isinstance(value, Dataset) or any(
        hasattr(value, name) for name in ("to_numpy", "__array_interface__")
    )
    is_own = not is_installed(type(value).__module__)
    return is_data or is_own or callable(value) or hasattr(value, "get_params")


def _module_digest(module, within):
    digest = hashlib.blake2b(ADDRESS.sub("", repr(module)).encode(), digest_size=8)
    for key, tensor in _tensors(module):
        digest.update(key.encode())
        if isinstance(tensor, torch.Tensor) and not _is_lazy(tensor):
            digest.update(_bytes(tensor))
    for part in module.modules():
        if not hasattr(part, "_orig_mod"):  # compiled: what it compiles comes by itself
            around = within if part is module else (*within, id(part))
            digest.update(_module_settings(part, around).encode())
    return digest.hexdigest()


def _tensors(module):
    """Weights and buffers by name; those that are not saved as well."""
    yield from module.state_dict().items()
    for prefix, part in module.named_modules():
        for name in sorted(getattr(part, "_non_persistent_buffers_set", ())):
            yield f"{prefix}.{name}", part._buffers[name]


def _module_settings(module, within):
    """Code, attributes and hooks of one module, without its weights and parts."""
    held = {
        name: value
        for name, value in vars(module).items()
        if name not in MODULE_ATTRIBUTES and not isinstance(value, RemovableHandle)
    }
    hooks = [
        list(getattr(module, name).values())
        for name in ("_forward_pre_hooks", "_forward_hooks")
    ]
    texts = (describe(told, within) for told in (_lasting(held), hooks))
    return " ".join([code_name(type(module)), *texts])


def _is_lazy(tensor):
    return torch.nn.parameter.is_lazy(tensor)


def _bytes(tensor):
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _array(array):
    if array.dtype.kind == "O":
        return f"object {array.shape} {_digest(repr(array.tolist()).encode())}"
    flat = np.ascontiguousarray(array).reshape(-1)
    data = flat.view(np.uint8).data if flat.size else b""
    return f"{array.dtype} {array.shape} {_digest(data)}"


def _digest(*parts):
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def data_fingerprint(data, classes) -> dict[str, str]:
    """Descriptions of validated data.

    Items of a Dataset are not read, since they may come augmented: its class, its
    length, its labels and what it holds stand for it.

    Parameters
    ----------
    data : TrainingData
    classes : ndarray of shape (C,)
    """
    weight = "none" if data.weight is None else describe(data.weight)
    return {
        "X": describe_samples(data.X),
        "y": describe(data.y),
        "classes": describe(classes.tolist()),
        "sample weights": weight,
    }


def describe_samples(X) -> str:
    """Text for samples: their digest; of a Dataset, its class and what it holds."""
    if not isinstance(X, Dataset):
        return describe(X)
    held = [describe(_lasting(held_by(X) or {}))]
    if isinstance(X, Subset):
        held = [describe_samples(X.dataset), describe(np.asarray(X.indices))]
    elif isinstance(X, ConcatDataset):
        held = [describe_samples(part) for part in X.datasets]
    return condense(", ".join([f"{n_rows(X)} items of {code_name(type(X))}", *held]))


def condense(text: str) -> str:
    """The text, or its beginning and a digest: a list of samples makes a long one."""
    return text if len(text) <= LONGEST else _shortened(text)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two fingerprints, in words.

    Examples
    --------
    >>> differences({"lr": "0.1", "rho": "0.5"}, {"lr": "0.2", "rho": "0.5"})
    ['lr was 0.1 and is 0.2']
    """
    names = sorted({*before, *now})
    return [
        f"{name} was {_short(before, name)} and is {_short(now, name)}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _short(descriptions, name):
    text = descriptions.get(name, "not given")
    return text if len(text) <= SHOWN else _shortened(text)


def _shortened(text):
    return f"{text[:SHOWN]}... ({_digest(text.encode())})"
