"""Describe code, data and parameters by short texts, the same in every process.

A checkpoint stores them to recognise its own fit and to name what differs in another.
"""

import functools
import hashlib
import re
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset
from torch.utils.hooks import RemovableHandle

from sklearn_sharpbalance.data.training_data import n_rows
from sklearn_sharpbalance.persistence.encoding import byte_view, printable
from sklearn_sharpbalance.runtime.torch_internals import (
    is_compiled_wrapper,
    own_buffers,
    unsaved_buffers,
)

__all__ = [
    "closed_over",
    "code_name",
    "condense",
    "data_fingerprint",
    "describe",
    "describe_samples",
    "differences",
]

MAX_DEPTH = 12  # of containers and objects inside each other
PLAIN = (bool, int, float, str, bytes, np.ndarray, np.generic, torch.Tensor)
CONSTANTS = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType)
MAX_STORED = 4000  # characters of one value in a checkpoint
MAX_SHOWN = 60  # characters of one value in a message
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# Weights, submodules and hooks of a module, and whether it is in training mode.
MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
SITE_FOLDERS = {"site-packages", "dist-packages"}


def code_name(value: type | types.FunctionType) -> str:
    """Return the name of a class or function, with a digest if it is not installed.

    The digest covers instructions and constants, defaults, constants of a closure, base
    classes and plain attributes of a class. Global variables and functions that the
    code uses are not seen.

    Examples
    --------
    >>> code_name(dict)
    'builtins.dict'
    >>> names = {code_name(eval(text)) for text in ("lambda x: x", "lambda y: -y")}
    >>> len(names)
    2
    """
    # A process started by multiprocessing imports the script under another name.
    module = "__main__" if value.__module__ == "__mp_main__" else value.__module__
    name = f"{module}.{value.__qualname__}"
    if _is_installed(module) and "<lambda>" not in value.__qualname__:
        return name
    return f"{name}[{_digest(repr(_code(value)).encode())}]"


@functools.cache
def _is_installed(module_name: str) -> bool:
    """Return whether a module belongs to Python, this package or another package."""
    top = (module_name or "__main__").partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    if top in ("__main__", "__mp_main__") or file is None:
        return False
    # Also packages below a virtual environment and of ``pip install --target``; the
    # metadata of editable ones is elsewhere.
    path = Path(file).resolve()
    folder = path.parent.parent if path.stem == "__init__" else path.parent
    return bool(SITE_FOLDERS & {*path.parts}) or any(folder.glob("*.dist-info"))


def _code(value: Any) -> Any:
    """Return the parts of a class or function that an edit changes, as plain values."""
    if isinstance(value, type):
        members = sorted(vars(value).items())
        own = [(k, _part(v)) for k, v in members if k[:2] != "__" or callable(v)]
        return [*map(code_name, value.__bases__), own]
    return _part(value)


def _part(value):
    """Return constants and instructions; other classes and objects by their names."""
    if isinstance(value, CONSTANTS):
        return repr(value)
    if isinstance(value, list | tuple):
        return list(map(_part, value))
    if isinstance(value, dict | set | frozenset):
        pairs = value.items() if isinstance(value, dict) else value
        return sorted(map(repr, map(_part, pairs)))
    if isinstance(value, types.CodeType):
        return [value.co_code, *map(_part, (value.co_names, value.co_consts))]
    if isinstance(value, property):
        return list(map(_part, (value.fget, value.fset, value.fdel)))
    wrapped = _part(getattr(value, "__wrapped__", None))  # of a decorator, staticmethod
    if not isinstance(value, types.FunctionType):
        return [getattr(value, "__qualname__", type(value).__qualname__), wrapped]
    code = value.__code__
    constants = [one for one in code.co_consts if one is None or one != value.__doc__]
    enclosed = [one for one in closed_over(value) if isinstance(one, CONSTANTS)]
    parts = (
        code.co_names,
        constants,
        enclosed,
        value.__defaults__,
        value.__kwdefaults__,
    )
    return [code.co_code, wrapped, *map(_part, parts)]


def closed_over(value: type | types.FunctionType) -> list[Any]:
    """Return the values of the enclosing variables that a function uses.

    Classes are left out, because the function may be a method of one of them.
    """
    contents = []
    for cell in getattr(value, "__closure__", None) or ():
        with suppress(ValueError):  # the variable is not assigned yet
            contents.append(cell.cell_contents)
    return [content for content in contents if not isinstance(content, type)]


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, slots included; None if it can have none."""
    classes = [cls for cls in type(value).__mro__ if "__slots__" in vars(cls)]
    slots = {}
    for cls in reversed(classes):
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType):
                with suppress(AttributeError):  # the slot is empty
                    slots[name] = member.__get__(value)
    if not hasattr(value, "__dict__"):
        return slots if classes else None
    return {**slots, **vars(value)}


def describe(value: Any, within: tuple[int, ...] = ()) -> str:
    """Return a text that is equal for equal values in every process.

    Classes and functions are described by their names, and by their code if it is not
    installed; arrays, tensors and modules by a digest; other objects by their class
    and attributes. Of private attributes, whose names start with an underscore, only
    numbers, strings, arrays, tables, Datasets and callables are included: others, such
    as caches and open files, may change while the object is used.

    Parameters
    ----------
    value : object
    within : tuple of int, default=()
        Identities of the containers and objects around the value.

    Examples
    --------
    >>> describe({"rho": (0.1, None)})
    "{'rho': (0.1, None)}"
    >>> describe(torch.nn.ReLU)
    'torch.nn.modules.activation.ReLU'
    """
    if len(within) > MAX_DEPTH or id(value) in within:
        return "..."
    if isinstance(value, np.generic):
        value = value.item()  # np.float64(0.1) is the same setting as 0.1
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {_digest(byte_view(value).data)}"
    if isinstance(value, type):
        return code_name(value)
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
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
    if isinstance(value, list):
        return f"[{', '.join(items)}]"
    return f"({', '.join(items)})"


def _function(value, within):
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial({', '.join(describe(part, within) for part in parts)})"
    if isinstance(value, types.MethodType):
        return f"{describe(value.__self__, within)}.{value.__func__.__name__}"
    variables = [describe(content, within) for content in closed_over(value)]
    if not variables:
        return code_name(value)
    return f"{code_name(value)}({', '.join(variables)})"


def _object(value, within):
    name = code_name(type(value))
    if isinstance(value, torch.nn.Module):
        return f"{name}[{_module_digest(value, within)}]"
    if hasattr(value, "to_numpy"):  # a table or column of pandas or polars
        names = list(map(str, getattr(value, "columns", ())))
        return f"{name}({names} {_array(value.to_numpy())})"
    if hasattr(value, "__array_interface__"):  # an image of Pillow
        return f"{name}({_array(np.asarray(value))})"
    if hasattr(value, "rvs") and hasattr(value, "dist"):  # a distribution of scipy
        arguments = describe((value.args, value.kwds), within)
        return f"scipy.stats.{value.dist.name}{arguments}"
    if hasattr(value, "get_params"):
        attributes = value.get_params(deep=False)
    else:
        attributes = _attributes(value)
    if attributes is None:
        return ADDRESS.sub("", repr(value))
    return f"{name}({describe(_compared(attributes), within)})"


def _compared(attributes):
    """Return the attributes of an object that belong to its description."""
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_")
        or isinstance(value, (*PLAIN, Dataset))
        or hasattr(value, "to_numpy")
        or callable(value)
    }


def _module_digest(module, within):
    digest = hashlib.blake2b(ADDRESS.sub("", repr(module)).encode(), digest_size=8)
    for key, tensor in _tensors(module):
        digest.update(key.encode())
        is_lazy = torch.nn.parameter.is_lazy(tensor)
        if isinstance(tensor, torch.Tensor) and not is_lazy:
            digest.update(byte_view(tensor).data)
    for part in module.modules():
        if not is_compiled_wrapper(part):  # it has the original as a part
            around = within if part is module else (*within, id(part))
            digest.update(_module_settings(part, around).encode())
    return digest.hexdigest()


def _tensors(module):
    """Yield weights and buffers by name, with the buffers that no state dict has."""
    yield from module.state_dict().items()
    for prefix, part in module.named_modules():
        for name in sorted(unsaved_buffers(part)):
            yield f"{prefix}.{name}", own_buffers(part)[name]


def _module_settings(module, within):
    """Describe code, attributes and hooks of one module without its submodules."""
    attributes = {
        name: value
        for name, value in vars(module).items()
        if name not in MODULE_ATTRIBUTES and not isinstance(value, RemovableHandle)
    }
    hooks = [
        list(getattr(module, name).values())
        for name in ("_forward_pre_hooks", "_forward_hooks")
    ]
    texts = [describe(_compared(attributes), within), describe(hooks, within)]
    return " ".join([code_name(type(module)), *texts])


def _array(array):
    if array.dtype.kind == "O":
        return f"object {array.shape} {_digest(repr(array.tolist()).encode())}"
    return f"{array.dtype} {array.shape} {_digest(byte_view(array).data)}"


def _digest(data):
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def data_fingerprint(data, classes) -> dict[str, str]:
    """Describe validated data.

    Items of a Dataset are not read, because they may be augmented: it is described by
    its class, length, labels and attributes.

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
    """Describe samples by a digest; a Dataset by its class, length and attributes."""
    if not isinstance(X, Dataset):
        return condense(describe(X))
    if isinstance(X, Subset):
        parts = [describe_samples(X.dataset), describe(np.asarray(X.indices))]
    elif isinstance(X, ConcatDataset):
        parts = [describe_samples(part) for part in X.datasets]
    else:
        parts = [describe(_compared(_attributes(X) or {}))]
    return condense(", ".join([f"{n_rows(X)} items of {code_name(type(X))}", *parts]))


def condense(text: str) -> str:
    """Return the text, or its beginning and a digest if it is long."""
    return text if len(text) <= MAX_STORED else _shortened(text)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence for each difference between two fingerprints.

    Examples
    --------
    >>> differences({"lr": "0.1", "rho": "0.5"}, {"lr": "0.2", "rho": "0.5"})
    ['lr was 0.1 and is 0.2']
    """
    names = sorted({*before, *now})
    return [
        f"{printable(name)} was {_short(before, name)} and is {_short(now, name)}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _short(descriptions, name):
    text = printable(descriptions.get(name, "not given"))
    return text if len(text) <= MAX_SHOWN else _shortened(text)


def _shortened(text):
    return f"{text[:MAX_SHOWN]}... ({_digest(text.encode())})"
