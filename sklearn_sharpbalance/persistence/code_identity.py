"""Names of classes and functions that change with what the user writes in them.

What is kept on disk must not be found again for code that was edited meanwhile.
Installed code goes by its name; other code, that of a notebook above all, also by a
digest of its instructions, of the values, functions and modules that it refers to, and
of its base classes.
"""

import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.persistence.instructions import (
    attribute_names,
    changed_names,
    global_names,
)

__all__ = ["MODULE_ATTRIBUTES", "closed_over", "code_name", "held_by", "is_installed"]

INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve())
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), types.EllipsisType)
CONTAINERS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
DEEPEST = 16  # containers and objects within each other
# Weights, parts and hooks of a module, and whether it trains just now.
MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
# What Python or copying keeps on a class, and what only tells about it.
BOOKKEEPING = {
    *("__doc__", "__module__", "__dict__", "__weakref__", "__slotnames__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
    *("__firstlineno__", "__static_attributes__", "__classcell__"),
}


def code_name(value: type | types.FunctionType) -> str:
    """Name of a class or function, with a digest if it is not installed code.

    The digest covers what the code refers to by a global name: constants, lists,
    dictionaries, arrays, tensors and objects of one's own by their values, functions
    and classes by their code, modules by what the code takes from them. It leaves out
    what the code itself changes (a counter, a list of losses), which would give the
    same code another name after every training, and what is imported within a
    function, which is not there before it runs.

    Examples
    --------
    >>> code_name(dict)
    'builtins.dict'
    >>> names = {code_name(eval(text)) for text in ("lambda x: x", "lambda y: -y")}
    >>> len(names)
    2
    """
    name = _name(value)
    if is_installed(value.__module__) and "<lambda>" not in value.__qualname__:
        return name
    digest = hashlib.blake2b(digest_size=8)
    _Description(digest).of(value)
    return f"{name}[{digest.hexdigest()}]"


def closed_over(value: type | types.FunctionType) -> list[Any]:
    """Values of variables around a function, which belong to what it does.

    Classes are left out, for theirs may be the one that the function is part of.
    """
    return [content for content in _contents(value) if not isinstance(content, type)]


def held_by(value: Any) -> dict[str, Any] | None:
    """Attributes of an object, those in slots included; None if it can have none."""
    classes = [cls for cls in type(value).__mro__ if "__slots__" in vars(cls)]
    held = {
        name: member.__get__(value)
        for cls in reversed(classes)
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType) and hasattr(value, name)
    }
    if not hasattr(value, "__dict__"):
        return held if classes else None
    return {**held, **vars(value)}


def _contents(value):
    for cell in getattr(value, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _name(value):
    # A process that multiprocessing starts has imported the script by another name.
    module = "__main__" if value.__module__ == "__mp_main__" else value.__module__
    return f"{module}.{value.__qualname__}"


@cache
def is_installed(module_name: str | None) -> bool:
    """Whether a module came with Python, this package or another installed one."""
    top = (module_name or "").partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        # The user's, though in a worker of joblib its file is one of joblib's.
        return False
    if top in sys.builtin_module_names or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and str(Path(file).resolve()).startswith(INSTALLED)


class _Description:
    """Feeds a digest with all that a piece of code says."""

    def __init__(self, digest):
        self.digest = digest
        # Classes, functions and objects in the order in which they were met, each told
        # once. Code waits in a list, not in recursion: it may lead far and to itself.
        self.met: dict[int, tuple[int, Any]] = {}
        self.waiting: list[type | types.FunctionType] = []
        self.within: list[int] = []

    def of(self, value: type | types.FunctionType):
        """The class or function and all that it leads to."""
        self.add(value)
        for value in self.waiting:  # which grows meanwhile
            self.write("then")
            if isinstance(value, type):
                self.add_class(value)
            else:
                self.add_function(value)

    def write(self, *parts):
        self.digest.update(f"{' '.join(map(str, parts))}\n".encode())

    def add(self, value: Any):
        """A class, a function, or what they hold."""
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif _is_wrapper(value):
            value = inspect.unwrap(value)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, CONSTANTS):
            self.write(repr(value))
        elif isinstance(value, (type, types.FunctionType)):
            self.add_named(value)
        elif isinstance(value, types.CodeType):
            self.add_code(value, None)
        elif isinstance(value, (np.ndarray, torch.Tensor)):
            self.add_array(value)
        elif id(value) in self.within or len(self.within) > DEEPEST:
            self.write("...")
        elif isinstance(value, CONTAINERS) or self.is_new(value):
            self.within.append(id(value))
            self.add_parts(value)
            self.within.pop()

    def is_new(self, value):
        """Whether a value is met for the first time; writes which one it is."""
        is_new = id(value) not in self.met
        number, _ = self.met.setdefault(id(value), (len(self.met), value))
        self.write("number", number)
        return is_new

    def add_parts(self, value):
        """A container or an object, by what is in it."""
        parts = _parts(value)
        self.write(_name(type(value)))
        if parts is None:  # the kind must do, and the name of what has one
            return self.write(getattr(value, "__name__", ""))
        if not isinstance(value, CONTAINERS):
            self.add(type(value))
        self.write(len(parts))
        for part in parts:
            self.add(part)

    def add_array(self, value):
        if isinstance(value, torch.Tensor):
            try:
                self.write("tensor", value.dtype, tuple(value.shape))
                flat = value.detach().cpu().contiguous().reshape(-1)
                value = flat.view(torch.uint8).numpy()
            except (RuntimeError, TypeError, ValueError):  # sparse, or without values
                return
        if value.dtype.kind == "O":
            return self.add(value.tolist())
        self.write("array", value.dtype, value.shape)
        self.digest.update(np.ascontiguousarray(value).tobytes())

    def add_named(self, value):
        if is_installed(value.__module__) and "<lambda>" not in value.__qualname__:
            return self.write(_name(value))
        if isinstance(value, type):
            self.write(_name(value))
        if self.is_new(value):
            self.waiting.append(value)

    def add_class(self, value):
        for base in value.__bases__:
            self.add(base)
        changed = _changed_by(value)
        for name in sorted(vars(value)):
            if name not in BOOKKEEPING and f".{name}" not in changed:
                self.write(name)
                self.add(vars(value)[name])

    def add_function(self, value):
        code = value.__code__
        self.add_code(code, value.__doc__)
        for part in (value.__defaults__, *sorted((value.__kwdefaults__ or {}).items())):
            self.add(part)
        for content in _contents(value):
            self.add_reference(content, code)
        for name in sorted(global_names(code) - changed_names(code)):
            if name in value.__globals__:
                self.write(name)
                self.add_reference(value.__globals__[name], code)

    def add_reference(self, value, code):
        """What code refers to; of a module of one's own, what the code takes of it."""
        if not isinstance(value, types.ModuleType):
            return self.add(value)
        self.write("module", value.__name__)
        if is_installed(value.__name__) or id(value) in self.within:
            return
        self.within.append(id(value))
        changed = changed_names(code)
        for name in sorted(attribute_names(code) & vars(value).keys()):
            if f".{name}" not in changed:
                self.write(name)
                self.add_reference(vars(value)[name], code)
        self.within.pop()

    def add_code(self, code, doc):
        """Instructions and constants; not where they stand in a file."""
        self.digest.update(code.co_code)
        self.write(code.co_names)
        self.write(code.co_varnames)
        for constant in code.co_consts:
            if doc is None or constant != doc:
                self.add(constant)


def _is_wrapper(value):
    """Whether a library has wrapped a function in an object (``functools.cache``)."""
    own = isinstance(value, (type, types.FunctionType, types.MethodType))
    return not own and callable(value) and is_installed(type(value).__module__)


def _parts(value) -> Collection[Any] | None:
    """What is in a container or object, in an order that is always the same.

    None for objects of installed classes: files, loggers and generators of random
    numbers change without a change of what the code says.
    """
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (dict, types.MappingProxyType)):
        return sorted(value.items(), key=lambda pair: repr(pair[0]))
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, functools.cached_property):
        return (value.func,)
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, torch.nn.Module):
        own = {k: v for k, v in vars(value).items() if k not in MODULE_ATTRIBUTES}
        return own, value._parameters, value._buffers, value._modules
    is_own = not is_installed(type(value).__module__)
    held = held_by(value)
    if held is None or not (is_own or isinstance(value, types.SimpleNamespace)):
        return None
    changed = _changed_by(type(value))
    return sorted((k, v) for k, v in held.items() if f".{k}" not in changed)


def _changed_by(cls) -> set[str]:
    """Names that the methods of a class change."""
    functions = (getattr(part, "__func__", part) for part in vars(cls).values())
    codes = (f.__code__ for f in functions if isinstance(f, types.FunctionType))
    return set().union(*map(changed_names, codes))
