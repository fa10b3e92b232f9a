"""Names of classes and functions that change with what the user writes in them.

What is kept on disk must not be found again for code that was edited meanwhile.
Installed code goes by its name; other code, that of a notebook above all, also by a
digest of its instructions, of the constants and functions that it refers to, and of its
base classes.
"""

import hashlib
import inspect
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["closed_over", "code_name"]

INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve())
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), types.EllipsisType)


def code_name(value: type | types.FunctionType) -> str:
    """Name of a class or function, with a digest if it is not installed code.

    Examples
    --------
    >>> code_name(dict)
    'builtins.dict'
    >>> names = {code_name(eval(text)) for text in ("lambda x: x", "lambda y: -y")}
    >>> len(names)
    2
    """
    name = _name(value)
    if _is_installed(value.__module__) and "<lambda>" not in value.__qualname__:
        return name
    digest = hashlib.blake2b(digest_size=8)
    _Description(digest).add(value)
    return f"{name}[{digest.hexdigest()}]"


def closed_over(value: type | types.FunctionType) -> list[Any]:
    """Values of variables around a function, which belong to what it does.

    Classes are left out, for theirs may be the one that the function is part of.
    """
    cells = getattr(value, "__closure__", None) or ()
    found = []
    for cell in cells:
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [content for content in found if not isinstance(content, type)]


def _name(value):
    return f"{value.__module__}.{value.__qualname__}"


@cache
def _is_installed(module_name):
    top = module_name.partition(".")[0]
    if top in sys.builtin_module_names or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and str(Path(file).resolve()).startswith(INSTALLED)


class _Description:
    """Feeds a digest with all that a piece of code says."""

    def __init__(self, digest):
        self.digest = digest
        self.seen: set[int] = set()

    def write(self, text):
        self.digest.update(f"{text}\n".encode())

    def add(self, value: Any):
        """A class, a function, or what they hold."""
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                self.add(part)
        elif isinstance(value, CONSTANTS):
            self.write(repr(value))
        elif isinstance(value, (tuple, frozenset)):
            self.write(type(value).__name__)
            for part in value if isinstance(value, tuple) else sorted(value, key=repr):
                self.add(part)
        elif isinstance(value, types.CodeType):
            self.add_code(value, None)
        elif isinstance(value, (type, types.FunctionType)):
            self.add_named(value)
        else:  # a module, an array, a list that code may change: the kind must do
            self.write(_name(type(value)))

    def add_named(self, value):
        if isinstance(value, type):
            self.write(_name(value))
        known = id(value) in self.seen or _is_installed(value.__module__)
        if known and "<lambda>" not in value.__qualname__:
            return
        self.seen.add(id(value))
        if isinstance(value, type):
            for base in value.__bases__:
                self.add(base)
            for name in sorted(vars(value)):
                if name not in ("__doc__", "__module__", "__dict__", "__weakref__"):
                    self.write(name)
                    self.add(vars(value)[name])
            return
        self.add_code(value.__code__, value.__doc__)
        for part in (value.__defaults__, *sorted((value.__kwdefaults__ or {}).items())):
            self.add(part)
        for content in closed_over(value):
            self.add(content)
        for name in sorted(_names(value.__code__)):
            if name in value.__globals__:
                self.add(value.__globals__[name])

    def add_code(self, code, doc):
        """Instructions and constants; not where they stand in a file."""
        self.digest.update(code.co_code)
        self.write(code.co_names)
        self.write(code.co_varnames)
        for constant in code.co_consts:
            if doc is None or constant != doc:
                self.add(constant)


def _names(code):
    """Names that code refers to, comprehensions and functions inside included."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
