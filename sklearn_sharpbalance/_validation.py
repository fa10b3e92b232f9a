"""Checks of parameters that all packages share.

This is the only file that imports private validation tools of scikit-learn: there is
no public name for the constraints that its own estimators use. :class:`Registry` turns
a name, an object or a function into a scorer, a selector or another pluggable object.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state as sklearn_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "BETWEEN_0_AND_1",
    "FROM_0_BELOW_1",
    "FROM_0_TO_1",
    "NON_NEGATIVE",
    "NON_NEGATIVE_INTEGER",
    "POSITIVE",
    "POSITIVE_INTEGER",
    "Integral",
    "Interval",
    "Real",
    "Registry",
    "StrOptions",
    "check_call",
    "check_choice",
    "check_generator",
    "check_numbers",
    "check_optional_numbers",
    "check_random_state",
    "check_sample_weight",
    "check_seed",
    "in_a_sentence",
    "printable",
]

POSITIVE_INTEGER = Interval(Integral, 1, None, closed="left")
NON_NEGATIVE_INTEGER = Interval(Integral, 0, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")  # and finite
NON_NEGATIVE = Interval(Real, 0, None, closed="left")  # and finite
BETWEEN_0_AND_1 = Interval(Real, 0, 1, closed="neither")
FROM_0_TO_1 = Interval(Real, 0, 1, closed="both")
FROM_0_BELOW_1 = Interval(Real, 0, 1, closed="left")
MAX_TEXT = 2000  # characters of a message


def check_numbers(interval: Interval, /, **values: Any) -> None:
    """Raise unless all values are numbers in an interval; a bool is not a number."""
    for name, value in values.items():
        if not _is_number_in(interval, value):
            raise InvalidInputError(f"{name} must be {interval}, got {value!r}.")


def check_optional_numbers(interval: Interval, /, **values: Any) -> None:
    """Raise unless all values are None or numbers in an interval."""
    for name, value in values.items():
        if value is not None and not _is_number_in(interval, value):
            expected = f"{interval} or None"
            raise InvalidInputError(f"{name} must be {expected}, got {value!r}.")


def _is_number_in(interval, value):
    return not isinstance(value, bool) and interval.is_satisfied_by(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise unless a parameter has one of the known values."""
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise InvalidInputError(f"Unknown {name} {value!r}. Choose one of {known}.")


def check_seed(random_state: Any) -> int:
    """Return an integer seed for None, an integer, a Generator or a RandomState."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, Integral) and int(random_state) >= 0:
        return int(random_state)
    raise InvalidInputError(
        "random_state must be None, a non-negative integer, a numpy Generator or a "
        f"numpy RandomState, got {random_state!r}."
    )


def check_generator(random_state: Any) -> np.random.Generator:
    """Return a Generator for whatever :func:`check_seed` accepts.

    None gives a new Generator: NumPy's global one is never used.
    """
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(check_seed(random_state))


def check_random_state(random_state: Any) -> np.random.RandomState:
    """Return a RandomState for None, an integer or a RandomState.

    Unlike scikit-learn's function of this name, None gives a new RandomState instead
    of NumPy's global one.
    """
    if random_state is None:
        return np.random.RandomState()
    try:
        return sklearn_random_state(random_state)
    except ValueError as error:
        raise InvalidInputError(
            "random_state must be None, an integer from 0 to 2**32 - 1 or a numpy "
            f"RandomState, got {random_state!r}."
        ) from error


def in_a_sentence(error: BaseException) -> str:
    """Return the text of an error without its full stop."""
    return str(error).rstrip().removesuffix(".")


def printable(text: str) -> str:
    """Return a text that a terminal only shows, in one line.

    Examples
    --------
    >>> print(printable("red: " + chr(27) + "[31m"))
    red: \\x1b[31m
    """
    cut = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def check_call(function: Callable, source: str, asked: str, *args, **kwargs) -> None:
    """Raise if a function does not take these arguments, placeholders of the real ones.

    The error names the function ``source``, and the call ``asked`` as documented.
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
    """Return weights as float64 of shape (N,), not negative; ones for None."""
    return _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )


class Registry(Mapping):
    """Pluggable objects of one kind by name.

    Parameters
    ----------
    parameter : str
        Name of the parameter that takes these objects, for error messages.
    kind : type
        Class that every object must be an instance of.
    wrap : callable, default=None
        Turns a plain function into a ``kind``; None to accept no functions.

    Examples
    --------
    >>> numbers = Registry("number", int)
    >>> numbers["one"] = lambda: 1
    >>> numbers.resolve("one")
    1
    >>> numbers
    <Registry of number: 'one'>
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

    def __repr__(self) -> str:
        names = ", ".join(repr(name) for name in self._factories)
        return f"<Registry of {self.parameter}: {names}>"

    def resolve(self, value: Any) -> Any:
        """Return a new object for a name, a clone of an object, a wrapped function."""
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
