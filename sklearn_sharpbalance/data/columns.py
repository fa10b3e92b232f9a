"""How the columns of a DataFrame become numbers, learned in ``fit``.

Numbers stay numbers; missing ones are replaced by the median, with a column of their
own that marks them. Categories become columns of zeros and ones, one for each category:
the first linear layer of a network then holds a learned vector for each of them.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.preprocessing import OneHotEncoder

from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

__all__ = [
    "COLUMN_KINDS",
    "MAX_CATEGORIES",
    "Column",
    "TableColumns",
    "as_float32",
    "check_names",
    "is_frame",
    "is_missing",
    "is_number",
    "named",
    "read_columns",
]

COLUMN_KINDS = ("number", "category", "ignored")
MIN_ROWS = 3  # of a category with a code of its own, if most have one row
MAX_CATEGORIES = 511  # codes of a column
MAX_INPUTS = 2000  # zeros and ones of all columns, without a warning
MAX_NAMES = 5  # in a message
NUMBERS = (Real, Decimal, np.bool_)
TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)
MANY = 20  # categories of a column that hardly is one, if they are numbers or dates
DATE = re.compile(r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([T\s].*)?$")


@dataclass(frozen=True, kw_only=True)
class Column:
    """What ``fit`` has learned of one column.

    Attributes
    ----------
    name : str
    kind : {"number", "category", "ignored"}
        A column without any value in training is ignored.
    fill : float
        Median of the training rows, which replaces missing numbers.
    categories : tuple of str, or of bool, int and float
        Categories with a code of their own, sorted.
    has_rare : bool
        Whether there is a code for all other categories, known or unknown.
    has_missing : bool
        Whether there is a code for missing values.
    """

    name: str
    kind: str
    fill: float = 0.0
    categories: tuple[Any, ...] = ()
    has_rare: bool = False
    has_missing: bool = False

    @property
    def n_numbers(self) -> int:
        """Number of encoded columns that are standardised."""
        return 1 if self.kind == "number" else 0

    @property
    def n_codes(self) -> int:
        """Number of encoded columns of zeros and ones."""
        return len(self.categories) + self.has_rare + self.has_missing

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write the encoded column of values (N,) to zeros (N, n_numbers + n_codes)."""
        if self.kind == "number":
            self._encode_numbers(values, out)
        elif self.kind == "category":
            self._encode_categories(values, out)

    def _encode_numbers(self, values, out):
        if values.dtype == object:  # categories at prediction
            values = np.array([self._as_number(value) for value in values])
        numbers = as_float32(self.name, values)
        missing = np.isnan(numbers)
        out[:, 0] = np.where(missing, np.float32(self.fill), numbers)
        if self.has_missing:
            out[:, 1] = missing

    def _as_number(self, value):
        if isinstance(value, str):
            raise InvalidInputError(
                f"Column {self.name!r} of X contains text, such as {value!r}, but it "
                "contained numbers in fit. Pass numbers, or fit again."
            )
        return np.nan if value is None else float(value)

    def _encode_categories(self, values, out):
        if values.dtype != object:  # numbers at prediction
            values = values.astype(object)
            values[values != values] = None  # NaN
        self._check_type(values)
        codes = {category: i for i, category in enumerate(self.categories)}
        rare = len(codes) if self.has_rare else -1
        codes[None] = len(codes) + self.has_rare if self.has_missing else rare
        found = np.fromiter((codes.get(value, rare) for value in values), dtype=np.intp)
        rows = np.flatnonzero(found >= 0)
        out[rows, found[rows]] = 1.0

    def _check_type(self, values):
        """Raise if text became numbers since ``fit``, or numbers text."""
        if not self.categories:
            return
        is_text = isinstance(self.categories[0], str)
        for value in set(values.tolist()):
            if value is not None and isinstance(value, str) != is_text:
                kinds = ("numbers", "text") if is_text else ("text", "numbers")
                raise InvalidInputError(
                    f"Column {self.name!r} of X contains {kinds[0]}, such as "
                    f"{value!r}, but its categories in fit were {kinds[1]}, such as "
                    f"{self.categories[0]!r}. Convert it as for fit, or fit again."
                )


@dataclass(frozen=True)
class TableColumns:
    """How a DataFrame becomes a float32 matrix: one entry for each of its columns.

    Only plain values, so that a model file can store them: the state of a fitted
    ``ColumnTransformer`` is objects and private attributes.
    """

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, values: dict[str, np.ndarray]) -> "TableColumns":
        """Learn the columns of the training samples, from :func:`read_columns`."""
        columns = tuple(_fit_column(name, column) for name, column in values.items())
        fitted = cls(columns)
        if not fitted.width:
            raise InvalidInputError(
                f"All values of X are missing in all of its {len(columns)} columns. "
                "Pass samples with values."
            )
        return fitted

    def transform(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """Return the encoded columns, (N, width) float32; ignored ones may be missing.

        Examples
        --------
        >>> ages, cities = np.array([1.0, 3.0, np.nan]), np.array(["b", "a", "b"])
        >>> table = {"age": np.tile(ages, 3), "city": np.tile(cities, 3).astype(object)}
        >>> TableColumns.fit(table).transform(table)[:3]
        array([[1., 0., 0., 1.],
               [3., 0., 1., 0.],
               [2., 1., 0., 1.]], dtype=float32)
        """
        n_samples = len(next(iter(values.values())))
        X = np.zeros((n_samples, self.width), dtype=np.float32)
        start = 0
        for column in self.columns:
            stop = start + column.n_numbers + column.n_codes
            if stop > start:
                column.encode(values[column.name], X[:, start:stop])
            start = stop
        return X

    @property
    def names(self) -> list[str]:
        """Names of the columns of the frame."""
        return [column.name for column in self.columns]

    @property
    def ignored(self) -> list[str]:
        """Names of the columns without a value in training."""
        return [column.name for column in self.columns if column.kind == "ignored"]

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return sum(column.n_numbers + column.n_codes for column in self.columns)

    @property
    def is_code(self) -> np.ndarray:
        """Whether each encoded column is one of zeros and ones, (width,) bool."""
        parts = [
            [False] * column.n_numbers + [True] * column.n_codes
            for column in self.columns
        ]
        return np.array([each for part in parts for each in part], dtype=bool)

    @property
    def is_plain(self) -> bool:
        """Whether an array of numbers can replace the frame, column by column."""
        return all(c.kind == "number" and not c.n_codes for c in self.columns)

    def warn(self, values: dict[str, np.ndarray]) -> None:
        """Warn of columns of :meth:`fit` from which hardly anything can be learned."""
        if self.ignored:
            _warn(
                f"X has no value in {len(self.ignored)} of {len(self.columns)} "
                f"columns: {named(self.ignored)}. They are ignored, also in "
                "predictions. Drop them to silence this warning."
            )
        for column in self.columns:
            looks = column.kind == "category" and _looks_like(column, values)
            if looks:
                what, instead = looks
                _warn(
                    f"Column {column.name!r} of X is text that looks like {what}, of "
                    f"which only {len(column.categories)} have a code of their own. "
                    f"{instead}"
                )
        n_codes = sum(column.n_codes for column in self.columns)
        if n_codes > MAX_INPUTS:
            widest = sorted(self.columns, key=lambda column: -column.n_codes)
            _warn(
                f"The categories of X become {n_codes} inputs of zeros and ones, most "
                f"of them from {named([column.name for column in widest])}. Training "
                "takes long. Encode long texts before the ensemble, for example by "
                "skrub.TableVectorizer(), or drop these columns."
            )


def _fit_column(name, values):
    if values.dtype == object:
        return _fit_categories(name, values)
    missing = np.isnan(values)
    if missing.all():
        return Column(name=name, kind="ignored")
    return Column(
        name=name,
        kind="number",
        fill=float(np.median(values[~missing])),
        has_missing=bool(missing.any()),
    )


def _fit_categories(name, values):
    """Let scikit-learn's encoder choose the categories that have a code."""
    counts = Counter(values.tolist())
    if counts.keys() <= {None}:
        return Column(name=name, kind="ignored")
    n_single = sum(count == 1 for count in counts.values())
    encoder = OneHotEncoder(
        min_frequency=MIN_ROWS if n_single > len(values) / 2 else 1,
        max_categories=MAX_CATEGORIES,
        handle_unknown="infrequent_if_exist",
    ).fit(values[:, None])
    rare = encoder.infrequent_categories_[0]
    rare = set() if rare is None else set(rare)
    kept = [category for category in encoder.categories_[0] if category not in rare]
    return Column(
        name=name,
        kind="category",
        categories=tuple(category for category in kept if category is not None),
        has_rare=bool(rare),
        has_missing=None in kept,
    )


def _looks_like(column, values):
    """Return what the text of a useless column may be, and what to do; else None.

    A column is useless if most rows have rare categories, or if more than a few numbers
    or dates are categories.
    """
    found = Counter(value for value in values[column.name] if value is not None)
    if not all(isinstance(value, str) for value in found):
        return None
    n_known = sum(found[category] for category in column.categories)
    mostly_rare = n_known < found.total() / 2
    if not mostly_rare and len(found) <= MANY:
        return None
    call = f"X[{column.name!r}]"
    if all(map(is_number, found)):
        return "numbers", f"Pass numbers, for example by pandas.to_numeric({call})."
    if all(map(DATE.match, found)):
        return "dates", (
            "Replace it by numbers, such as the year or the day of the year of "
            f"pandas.to_datetime({call})."
        )
    if mostly_rare and found.total() >= MANY:
        return "identifiers or free text", (
            "Drop it, or encode it before the ensemble, for example by "
            "skrub.TableVectorizer()."
        )
    return None


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _warn(message):
    warnings.warn(SharpBalanceWarning(message), stacklevel=3)


def named(names: list[Any]) -> str:
    """Return the first names for a message.

    Examples
    --------
    >>> named(["a", "b"]), named(list("abcdefg"))
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', ...")
    """
    more = ", ..." if len(names) > MAX_NAMES else ""
    return ", ".join(map(repr, names[:MAX_NAMES])) + more


# Reading ------------------------------------------------------------------------------


def is_frame(X: Any) -> bool:
    """Return whether X is a DataFrame of pandas or polars.

    Both are recognised by their attributes, since neither need be installed.
    """
    return hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "get_columns"))


def check_names(X: Any) -> None:
    """Raise if two columns of a DataFrame have the same name.

    Call it before scikit-learn reads the names, since its error depends on its version.
    """
    counts = Counter(map(str, X.columns))
    name, count = counts.most_common(1)[0]
    if count > 1:
        raise InvalidInputError(
            f"X has {count} columns of the name {name!r}. Rename or drop columns, so "
            "that all names differ."
        )


def read_columns(X: Any, ignored: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """Return the columns (N,) of a DataFrame by their names, without ``ignored`` ones.

    They are arrays of numbers, with NaN for missing values, or object arrays of
    categories, with None for missing values. Other columns raise an error with their
    name.

    Examples
    --------
    >>> import pandas
    >>> read_columns(pandas.DataFrame({"age": [3, None], "city": [None, "Ulm"]}))
    {'age': array([ 3., nan]), 'city': array([None, 'Ulm'], dtype=object)}
    """
    return {
        str(name): _read_column(str(name), X[name])
        for name in X.columns
        if str(name) not in ignored
    }


def _read_column(name, series):
    """Read a series; pandas and polars share the methods that are used."""
    if str(series.dtype) == "category":  # of pandas
        categories = series.cat.categories.tolist()
        values = np.fromiter([*_as_categories(name, categories), None], dtype=object)
        return values[series.cat.codes.to_numpy()]  # -1, the last, is missing
    values = series.to_numpy()
    if values.dtype.kind in "biuf" and values.ndim == 1:
        return values
    missing = np.fromiter(map(is_missing, series.to_list()), dtype=bool)
    if missing.all() and values.dtype.kind not in "mM":
        return np.full(len(values), np.nan)
    values = np.fromiter(series.to_list(), dtype=object, count=len(values))
    if _is_text(name, values[~missing]):
        values[~missing] = [str(value) for value in values[~missing]]
        values[missing] = None
        return values
    values[missing] = np.nan
    return values.astype(np.float64)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or NA or NaT of pandas.

    By name: NA equals nothing, and pandas need not be installed.
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _as_categories(name, categories):
    """Return categories as strings, booleans, integers and floats of Python."""
    if not categories or _is_text(name, categories):
        return [str(category) for category in categories]
    return [_as_plain(category) for category in categories]


def _as_plain(value):
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return int(value) if isinstance(value, Integral) else float(value)


def _is_text(name, values):
    """Return True for text and False for numbers; raise for everything else."""
    types = {type(value) for value in values}
    if all(issubclass(kind, str) for kind in types):
        return True
    if all(issubclass(kind, NUMBERS) for kind in types):
        return False
    names = ", ".join(sorted(kind.__name__ for kind in types)[:MAX_NAMES])
    if any(issubclass(kind, TIMES) for kind in types):
        raise InvalidInputError(
            f"Column {name!r} of X contains dates or times ({names}). Replace it by "
            "numbers, such as the year, the day of the year, or the seconds since the "
            "first date, or put skrub.TableVectorizer() before the ensemble in a "
            "pipeline."
        )
    if all(issubclass(kind, (str, *NUMBERS)) for kind in types):
        raise InvalidInputError(
            f"Column {name!r} of X contains both text and numbers ({names}). Convert "
            f"it to one type: X[{name!r}].astype(str) for categories, or "
            f"pandas.to_numeric(X[{name!r}]) for numbers."
        )
    raise InvalidInputError(
        f"Column {name!r} of X contains objects of type {names}, which are neither "
        f"numbers nor categories. Drop it, or convert it to text, for example by "
        f"X[{name!r}].astype(str)."
    )


def as_float32(name: str, values: np.ndarray) -> np.ndarray:
    """Return a column of numbers as float32; raise if one is too large for it."""
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(infinite.argmax())
        raise InvalidInputError(
            f"Input X contains infinity or a value too large for float32 in column "
            f"{name!r}, first in row {row}: {values[row]!s}. Clip such values, or "
            "replace them by NaN, which counts as missing."
        )
    return numbers
