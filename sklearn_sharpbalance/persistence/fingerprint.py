"""Describe code, data and parameters by short texts, the same in every process.

A checkpoint stores them to recognise its own fit and to name what differs in another.
"""

import functools
import hashlib
import pickle
import re
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.hooks import RemovableHandle

from sklearn_sharpbalance._validation import printable
from sklearn_sharpbalance.data.training_data import ArrayRows, TrainingData, map_arrays
from sklearn_sharpbalance.persistence.encoding import byte_view
from sklearn_sharpbalance.runtime.torch_internals import (
    hooks_of,
    is_compiled_wrapper,
    own_buffers,
    own_parameters,
)

PART_BYTES = 2**24  # of an array that are copied at once
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

    The digest covers instructions, constants, defaults and constants of a closure; of
    a class also the base classes and plain attributes. Global variables and functions
    that the code uses are not seen.

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
    if isinstance(value, type):
        members = sorted(vars(value).items())
        own = [(k, _code(v)) for k, v in members if k[:2] != "__" or callable(v)]
        code = [*map(code_name, value.__bases__), own]
    else:
        code = _code(value)
    return f"{name}[{_digest(repr(code).encode())}]"


@functools.cache
def _is_installed(module_name: str) -> bool:
    """Return whether a module belongs to Python, this package or another package."""
    top = (module_name or "__main__").partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    if top == "__main__" or file is None:
        return False
    return bool(SITE_FOLDERS & {*Path(file).resolve().parts})


def _code(value):
    """Return constants and instructions; other classes and objects by their names."""
    if isinstance(value, CONSTANTS):
        return repr(value)
    if isinstance(value, property):
        value = (value.fget, value.fset, value.fdel)
    if isinstance(value, list | tuple):
        return list(map(_code, value))
    if isinstance(value, dict | set | frozenset):  # a set has no order
        items = value.items() if isinstance(value, dict) else value
        return sorted(repr(_code(item)) for item in items)
    if isinstance(value, types.CodeType):
        return [value.co_code, _code(value.co_names), _code(value.co_consts)]
    inner = _code(getattr(value, "__wrapped__", None))  # of a decorator, staticmethod
    if not isinstance(value, types.FunctionType):
        return [getattr(value, "__qualname__", type(value).__qualname__), inner]
    code = value.__code__
    constants = [one for one in code.co_consts if one is None or one != value.__doc__]
    enclosed = [one for one in _closed_over(value) if isinstance(one, CONSTANTS)]
    defaults = (value.__defaults__, value.__kwdefaults__)
    return [code.co_code, inner, _code((code.co_names, constants, enclosed, defaults))]


def _closed_over(value: type | types.FunctionType) -> list[Any]:
    """Return the values of the enclosing variables that a function uses.

    Classes are left out, because the function may be a method of one of them.
    """
    contents = []
    for cell in getattr(value, "__closure__", None) or ():
        with suppress(ValueError):  # the variable is not assigned yet
            contents.append(cell.cell_contents)
    return [content for content in contents if not isinstance(content, type)]


class Around(NamedTuple):
    """What is around a value that is described."""

    ids: tuple[int, ...] = ()  # identities of containers and objects
    private: bool = False  # whether all private attributes of objects count


ALONE = Around()


def by_file(data):
    """Return training data with files in place of arrays on disk, for a hash.

    A memory map that cannot be written to is described by its file, without reading it.
    """
    if not isinstance(data, TrainingData):
        return data
    X = map_arrays(_file_of, data.X)
    return replace(data, X=X, valid=by_file(data.valid))


def _file_of(array):
    """Return path, size, time and layout of an array on disk; others as they are."""
    if isinstance(array, ArrayRows):
        return _file_of(array.array), array.rows
    source = array
    while isinstance(source, np.ndarray) and isinstance(source.base, np.ndarray):
        source = source.base
    path = Path(getattr(source, "filename", None) or "")
    if getattr(source, "mode", None) != "r" or not path.is_file():
        return array
    status, start = path.stat(), array.ctypes.data - source.ctypes.data
    place = (source.offset + start, array.dtype.str, array.shape, array.strides)
    return str(path), status.st_size, status.st_mtime_ns, place


def stable_hash(value: Any) -> str:
    """Return a digest that is equal for equal values in every process.

    Private attributes count, too: a result must not be taken for that of another value.

    Examples
    --------
    >>> stable_hash([torch.ones(2)]) == stable_hash([torch.ones(2)])
    True
    >>> stable_hash([torch.ones(2)]) == stable_hash([torch.zeros(2)])
    False
    """
    return _digest(describe(value, Around(private=True)).encode())


def describe(value: Any, around: Around = ALONE) -> str:
    """Return a text that is equal for equal values in every process.

    Classes and functions are described by :func:`code_name`; arrays, tensors and
    modules by a digest; other objects by their class and attributes. Of private
    attributes, only numbers, strings, arrays, tables, Datasets and callables are
    included: others, such as caches and open files, may change during use.

    Examples
    --------
    >>> describe({"rho": (0.1, None)})
    "{'rho': (0.1, None)}"
    """
    if len(around.ids) > MAX_DEPTH or id(value) in around.ids:
        return "..."
    if isinstance(value, np.generic):
        value = value.item()  # np.float64(0.1) is the same setting as 0.1
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, torch.Tensor):
        if torch.nn.parameter.is_lazy(value):
            return "no values yet"
        return f"{value.dtype} {tuple(value.shape)} {_digest(byte_view(value).data)}"
    if isinstance(value, type):
        return code_name(value)
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, types.ModuleType):
        return value.__name__
    around = around._replace(ids=(*around.ids, id(value)))
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _container(value, around)
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return _function(value, around)
    return _object(value, around)


def _container(value, around):
    if isinstance(value, Mapping):
        items = [
            f"{describe(k, around)}: {describe(v, around)}" for k, v in value.items()
        ]
    else:
        items = [describe(item, around) for item in value]
    if isinstance(value, Mapping | set | frozenset):
        return "{" + ", ".join(sorted(items)) + "}"
    opening, closing = "[]" if isinstance(value, list) else "()"
    return f"{opening}{', '.join(items)}{closing}"


def _function(value, around):
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial({', '.join(describe(part, around) for part in parts)})"
    if isinstance(value, types.MethodType):
        return f"{describe(value.__self__, around)}.{value.__func__.__name__}"
    variables = [describe(content, around) for content in _closed_over(value)]
    return (
        f"{code_name(value)}({', '.join(variables)})" if variables else code_name(value)
    )


def _object(value, around):
    name = code_name(type(value))
    if isinstance(value, torch.nn.Module):
        return f"{name}[{_module_digest(value, around)}]"
    if hasattr(value, "to_numpy") or hasattr(value, "__array_interface__"):
        # A table or column of pandas or polars, or an image of Pillow.
        names = list(map(str, getattr(value, "columns", ())))
        return f"{name}({names} {_array(np.asarray(value))})"
    if hasattr(value, "get_params"):
        return f"{name}({describe(_compared(value.get_params(deep=False)), around)})"
    if hasattr(value, "__dict__"):
        attributes = vars(value) if around.private else _compared(vars(value))
        return f"{name}({describe(attributes, around)})"
    text = ADDRESS.sub("", repr(value))
    if around.private:
        with suppress(Exception):  # an open file, say, cannot be pickled
            text += f" {_digest(pickle.dumps(value))}"
    return text


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


def _module_digest(module, around):
    """Return a digest of the code, tensors, attributes and hooks of all layers."""
    texts = [ADDRESS.sub("", repr(module))]
    for name, part in module.named_modules():
        if not is_compiled_wrapper(part):  # it has the original as a part
            ids = around.ids if part is module else (*around.ids, id(part))
            layer = describe(_of_layer(part, around), around._replace(ids=ids))
            texts += [name, code_name(type(part)), layer]
    return _digest(" ".join(texts).encode())


def _of_layer(module, around):
    """Return tensors, attributes and hooks of a module without its submodules."""
    attributes = {
        name: value
        for name, value in vars(module).items()
        if name not in MODULE_ATTRIBUTES and not isinstance(value, RemovableHandle)
    }
    tensors = {**own_parameters(module), **own_buffers(module)}
    if not around.private:
        attributes = _compared(attributes)
    return tensors, attributes, hooks_of(module)


def _array(array):
    if array.dtype.kind == "O":
        return f"object {array.shape} {_digest(repr(array.tolist()).encode())}"
    # Parts of a memory map with other strides are copied, but not all of it at once.
    n_parts = 1 if array.flags.c_contiguous else 1 + array.nbytes // PART_BYTES
    parts = [array] if n_parts == 1 else np.array_split(array, n_parts)
    return f"{array.dtype} {array.shape} {_digest(*(byte_view(p).data for p in parts))}"


def _digest(*parts):
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def data_fingerprint(data, classes) -> dict[str, str]:
    """Describe training data by samples, labels, classes and weights."""
    weight = "none" if data.weight is None else describe(data.weight)
    return {
        "X": condense(describe(data.X)),
        "y": describe(data.y),
        "classes": describe(classes.tolist()),
        "sample weights": weight,
    }


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
