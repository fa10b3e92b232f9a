"""The border to scikit-learn: the only file that touches its private validation.

Also the one way in which a name, an object or a function becomes a scorer, a
selector or anything else that is pluggable: :class:`Registry`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_params,
)
from sklearn.utils.validation import _check_sample_weight

from sklearn_sharpbalance.exceptions import InvalidInputError, MissingPackageError

__all__ = [
    "HasMethods",
    "Integral",
    "Interval",
    "InvalidParameterError",
    "Real",
    "Registry",
    "StrOptions",
    "check_call",
    "check_sample_weight",
    "in_a_sentence",
    "validate_params",
]


def in_a_sentence(error: BaseException) -> str:
    """Text of an error that a sentence of ours goes on after.

    Examples
    --------
    >>> in_a_sentence(ValueError("Got 8 x 8."))
    'Got 8 x 8'
    """
    return str(error).rstrip().removesuffix(".")


def check_call(function: Callable, source: str, asked: str, *args, **kwargs) -> None:
    """Raise if a function does not take the arguments that it will get.

    Parameters
    ----------
    function : callable
    source : str
        Whose function it is, for the message.
    asked : str
        The call as the documentation has it.
    *args, **kwargs
        Stand for the arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInputError(
            f"{source} is called as {asked}, but takes {signature}: "
            f"{in_a_sentence(error)}. Let it take these arguments."
        ) from error


def check_sample_weight(sample_weight, X):
    """Weights as float64 of shape (N,), none negative; ones for None."""
    return _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )


class Registry(Mapping):
    """Names of one kind of pluggable object, and how a value becomes one of them.

    Parameters
    ----------
    parameter : str
        Name of the parameter that takes these objects, for error messages.
    kind : type
        Class that every object must be an instance of.
    wrap : callable, default=None
        Turns a plain function into a ``kind``; None if functions are refused.

    Examples
    --------
    >>> numbers = Registry("number", int)
    >>> numbers["one"] = lambda: 1
    >>> numbers.resolve("one")
    1
    """

    def __init__(self, parameter: str, kind: type, wrap: Callable | None = None):
        self.parameter = parameter
        self.kind = kind
        self.wrap = wrap
        self._factories: dict[str, Callable[[], Any]] = {}

    def __setitem__(self, name: str, factory: Callable[[], Any]) -> None:
        self._factories[name] = factory

    def __getitem__(self, name: str) -> Callable[[], Any]:
        return self._factories[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __len__(self) -> int:
        return len(self._factories)

    def resolve(self, value: Any) -> Any:
        """A fresh object for a name, a clone of an object, a wrapped function."""
        if isinstance(value, str) and value in self._factories:
            return self._factories[value]()
        if isinstance(value, self.kind):
            return clone(value, safe=False)
        if self.wrap is not None and callable(value) and not isinstance(value, type):
            return self.wrap(value)
        names = ", ".join(repr(name) for name in self._factories)
        kind = self.kind.__name__
        article = "an" if kind[0] in "AEIOU" else "a"
        function = " or a function" if self.wrap is not None else ""
        raise InvalidInputError(
            f"Unknown {self.parameter} {value!r}. Choose one of {names}, or pass "
            f"{article} {kind}{function}."
        )


@contextmanager
def needing(package: str, what: str) -> Iterator[None]:
    """Raise an error that says what to install if an import in the block fails.

    Parameters
    ----------
    package : str
        As ``pip install`` takes it.
    what : str
        What the package is needed for, the start of the message.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs {package}: pip install {package} ({error})."
        ) from error
