"""Names of classes and functions that change when a user edits their code.

Installed code is identified by its name. Other code, such as that of a notebook, is
identified by its name and a digest of its instructions, its constants, its base classes
and the global variables that it reads.
"""

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.persistence.encoding import byte_view
from sklearn_sharpbalance.runtime.torch_internals import (
    child_modules,
    own_buffers,
    own_parameters,
)

__all__ = [
    "MODULE_ATTRIBUTES",
    "attributes_of",
    "closed_over",
    "code_name",
    "keep_code_names",
]

INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve())
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
SITE_FOLDERS = ("site-packages", "dist-packages")
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), types.EllipsisType)
CONTAINERS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
MAX_DEPTH = 16  # of containers and objects inside each other
# Weights, submodules and hooks of a module, and whether it is in training mode.
MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
# Attributes that Python or the copy module sets on a class, and documentation.
BOOKKEEPING = {
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__classcell__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
}


CodeNames = dict[type | types.FunctionType, str]
_KEPT: ContextVar[CodeNames | None] = ContextVar("code_names", default=None)


@contextmanager
def keep_code_names(names: CodeNames) -> Iterator[None]:
    """Compute the name of each class and function once in a block.

    Edits of code or of global variables in the block are not seen.

    Parameters
    ----------
    names : dict
        Gets the names, for this block and later ones.
    """
    before = _KEPT.set(names)
    try:
        yield
    finally:
        _KEPT.reset(before)


def code_name(value: type | types.FunctionType) -> str:
    """Return the name of a class or function, with a digest if it is not installed.

    The digest covers the global variables that the code reads: constants, containers,
    arrays and tensors by value; functions and classes by their code; attributes of the
    user's own modules if the code uses their names; objects of the user's own classes
    by their attributes. Objects of installed classes count by their class only, and
    modules that a function imports when it runs are not seen. A variable that the code
    changes itself, such as a counter, changes the digest like any other edit.

    Examples
    --------
    >>> code_name(dict)
    'builtins.dict'
    >>> names = {code_name(eval(text)) for text in ("lambda x: x", "lambda y: -y")}
    >>> len(names)
    2
    """
    if _has_fixed_code(value):
        return _qualified_name(value)
    kept = _KEPT.get()
    if kept is not None and value in kept:
        return kept[value]
    digest = hashlib.blake2b(digest_size=8)
    _CodeDigest(digest).add_code_of(value)
    name = f"{_qualified_name(value)}[{digest.hexdigest()}]"
    if kept is not None:
        kept[value] = name
    return name


def closed_over(value: type | types.FunctionType) -> list[Any]:
    """Return the values of the enclosing variables that a function uses.

    Classes are left out, because the function may be a method of one of them.
    """
    return [content for content in _cells(value) if not isinstance(content, type)]


def attributes_of(value: Any) -> dict[str, Any] | None:
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


@cache
def _is_installed(module_name: str | None) -> bool:
    """Return whether a module belongs to Python, this package or another package."""
    top = (module_name or "").partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return False  # in a joblib worker, the file of __main__ is one of joblib's
    if top in sys.builtin_module_names or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    if str(path).startswith(INSTALLED):
        return True
    # Packages of the system or the user below a virtual environment, and those of
    # ``pip install --target``. The metadata of editable packages is elsewhere.
    folder = path.parent.parent if path.stem == "__init__" else path.parent
    return folder.name in SITE_FOLDERS or any(folder.glob("*.dist-info"))


def _has_fixed_code(value):
    return _is_installed(value.__module__) and "<lambda>" not in value.__qualname__


def _qualified_name(value):
    # A process started by multiprocessing imports the script under another name.
    module = "__main__" if value.__module__ == "__mp_main__" else value.__module__
    return f"{module}.{value.__qualname__}"


def _cells(value):
    for cell in getattr(value, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue


def _nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_code(constant)


def _global_names(code) -> set[str]:
    """Return the names of the global variables that code reads.

    ``co_names`` lists attributes as well. A worker process receives only the globals
    that the code reads, and would compute another digest.
    """
    return {
        instruction.argval
        for part in _nested_code(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


class _CodeDigest:
    """Updates a digest with a class or function and everything that it refers to."""

    def __init__(self, digest):
        self.digest = digest
        # Classes, functions and objects in the order of their discovery; each is added
        # once. Code is queued, because recursion could be too deep or endless.
        self.found: dict[int, tuple[int, Any]] = {}
        self.queue: list[type | types.FunctionType] = []
        self.enclosing: list[int] = []

    def add_code_of(self, value: type | types.FunctionType) -> None:
        """Add a class or function and all code that it leads to."""
        self.add(value)
        for item in self.queue:  # grows during the loop
            self.write("next")
            if isinstance(item, type):
                self.add_class(item)
            else:
                self.add_function(item)

    def write(self, *parts):
        self.digest.update(f"{' '.join(map(str, parts))}\n".encode())

    def add(self, value: Any) -> None:
        """Add a class, a function, or a value that they refer to."""
        if not isinstance(value, (type, types.FunctionType)):
            value = inspect.unwrap(value)  # staticmethod, classmethod, functools.cache
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, CONSTANTS):
            self.write(repr(value))
        elif isinstance(value, (type, types.FunctionType)):
            self.add_named(value)
        elif isinstance(value, types.CodeType):
            self.add_instructions(value, doc=None)
        elif isinstance(value, (np.ndarray, torch.Tensor)):
            self.add_array(value)
        elif id(value) in self.enclosing or len(self.enclosing) > MAX_DEPTH:
            self.write("...")
        elif isinstance(value, CONTAINERS) or self.is_new(value):
            self.enclosing.append(id(value))
            self.add_parts(value)
            self.enclosing.pop()

    def is_new(self, value) -> bool:
        """Return whether a value is found for the first time; write its number."""
        is_new = id(value) not in self.found
        number, _ = self.found.setdefault(id(value), (len(self.found), value))
        self.write("number", number)
        return is_new

    def add_parts(self, value):
        """Add a container or an object by its parts."""
        parts = _parts(value)
        self.write(_qualified_name(type(value)))
        if parts is None:
            return self.write(getattr(value, "__name__", ""))
        if not isinstance(value, CONTAINERS):
            self.add(type(value))
        self.write(len(parts))
        for part in parts:
            self.add(part)

    def add_array(self, value):
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            return self.add(value.tolist())
        try:
            self.write("array", value.dtype, tuple(value.shape))
            self.digest.update(byte_view(value).data)
        except (RuntimeError, TypeError, ValueError):  # sparse, or without values
            self.write(type(value).__name__)

    def add_named(self, value):
        if _has_fixed_code(value):
            return self.write(_qualified_name(value))
        if isinstance(value, type):
            self.write(_qualified_name(value))
        if self.is_new(value):
            self.queue.append(value)

    def add_class(self, value):
        for base in value.__bases__:
            self.add(base)
        for name, attribute in sorted(vars(value).items()):
            if name not in BOOKKEEPING:
                self.write(name)
                self.add(attribute)

    def add_function(self, value):
        code = value.__code__
        self.add_instructions(code, value.__doc__)
        self.add(value.__defaults__)
        self.add(value.__kwdefaults__)
        for content in _cells(value):
            self.add_variable(content, code)
        for name in sorted(_global_names(code) & value.__globals__.keys()):
            self.write(name)
            self.add_variable(value.__globals__[name], code)

    def add_variable(self, value, code):
        """Add a variable that code reads; of a module, the attributes that it names."""
        if not isinstance(value, types.ModuleType):
            return self.add(value)
        self.write("module", value.__name__)
        if _is_installed(value.__name__) or id(value) in self.enclosing:
            return
        self.enclosing.append(id(value))
        names = {name for part in _nested_code(code) for name in part.co_names}
        for name in sorted(names & vars(value).keys()):
            self.write(name)
            self.add_variable(vars(value)[name], code)
        self.enclosing.pop()

    def add_instructions(self, code, doc):
        """Add instructions and constants, without line numbers and docstring."""
        self.digest.update(code.co_code)
        self.write(code.co_names)
        self.write(code.co_varnames)
        for constant in code.co_consts:
            if doc is None or constant != doc:
                self.add(constant)


def _parts(value) -> list[Any] | tuple[Any, ...] | None:
    """Return the parts of a container or object in a fixed order.

    None for objects of installed classes: files, loggers and random generators change
    although the code stays the same.
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
        return own, own_parameters(value), own_buffers(value), child_modules(value)
    if _is_installed(type(value).__module__):
        return None
    attributes = attributes_of(value)
    return None if attributes is None else sorted(attributes.items())
