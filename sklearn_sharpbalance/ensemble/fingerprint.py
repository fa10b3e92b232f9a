"""Short descriptions of data and parameters, equal in every process for equal values.

A checkpoint keeps them to know its own fit again, and to say by name what differs.
"""

import functools
import hashlib
import re
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from sklearn_sharpbalance.ensemble.code_names import closed_over, code_name
from sklearn_sharpbalance.members.data import n_rows

__all__ = ["data_fingerprint", "describe", "describe_samples", "differences"]

DEEPEST = 8
PLAIN = (bool, int, float, str, bytes, np.ndarray, np.generic, torch.Tensor)
SHOWN = 60  # characters of one value in a message
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe(value: Any, depth: int = 0) -> str:
    """Text that is equal for equal values, whatever the process.

    Classes and functions go by their names, and by their code if it is not installed;
    arrays, tensors and modules by a digest; estimators, callbacks and
    other objects by their class and what they hold.

    Examples
    --------
    >>> describe({"rho": (0.1, None)})
    "{'rho': (0.1, None)}"
    >>> describe(torch.nn.ReLU)
    'torch.nn.modules.activation.ReLU'
    """
    if depth > DEEPEST:
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
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _container(value, depth)
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return _function(value, depth)
    return _object(value, depth)


def _container(value, depth):
    def inner(item):
        return describe(item, depth + 1)

    if isinstance(value, Mapping):
        pairs = sorted((inner(k), inner(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    items = [inner(item) for item in value]
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(items)) + "}"
    return ("[{}]" if isinstance(value, list) else "({})").format(", ".join(items))


def _function(value, depth):
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial({', '.join(describe(part, depth + 1) for part in parts)})"
    if isinstance(value, types.MethodType):
        return f"{describe(value.__self__, depth + 1)}.{value.__func__.__name__}"
    around = [describe(content, depth + 1) for content in closed_over(value)]
    return code_name(value) + (f"({', '.join(around)})" if around else "")


def _object(value, depth):
    name = code_name(type(value))
    if isinstance(value, torch.nn.Module):
        return f"{name}[{_module_digest(value)}]"
    if hasattr(value, "to_numpy"):  # a table or column of pandas or polars
        names = list(map(str, getattr(value, "columns", ())))
        return f"{name}({names} {_array(value.to_numpy())})"
    if hasattr(value, "rvs") and hasattr(value, "dist"):  # of scipy, frozen
        arguments = describe((value.args, value.kwds), depth + 1)
        return f"scipy.stats.{value.dist.name}{arguments}"
    if hasattr(value, "get_params"):
        held = value.get_params(deep=False)
    else:
        held = getattr(value, "__dict__", None)
    if held is None:
        return ADDRESS.sub("", repr(value))
    return f"{name}({describe(_lasting(held), depth + 1)})"


def _lasting(held):
    """What an object holds, without what it may keep for its own use meanwhile."""
    return {
        name: value
        for name, value in held.items()
        if not name.startswith("_") or isinstance(value, PLAIN)
    }


def _module_digest(module):
    digest = hashlib.blake2b(ADDRESS.sub("", repr(module)).encode(), digest_size=8)
    for key, tensor in module.state_dict().items():
        digest.update(key.encode())
        if isinstance(tensor, torch.Tensor) and not _is_lazy(tensor):
            digest.update(_bytes(tensor))
    return digest.hexdigest()


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
    held = [describe(_lasting(getattr(X, "__dict__", {})))]
    if isinstance(X, Subset):
        held = [describe_samples(X.dataset), describe(np.asarray(X.indices))]
    elif isinstance(X, ConcatDataset):
        held = [describe_samples(part) for part in X.datasets]
    return ", ".join([f"{n_rows(X)} items of {code_name(type(X))}", *held])


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
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}... ({_digest(text.encode())})"
