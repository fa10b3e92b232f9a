"""Read the columns of a pandas or polars DataFrame as arrays.

A column becomes numbers (a float, integer or boolean array, NaN where a value is
missing) or categories (an object array of strings or numbers, None where a value is
missing). Everything else raises an error that names the column.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["as_float32", "check_names", "is_frame", "read_columns"]

NUMBERS = (Real, Decimal, np.bool_)
TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)
MAX_TYPES = 5  # in a message


def is_frame(X: Any) -> bool:
    """Return whether X is a DataFrame of pandas or polars.

    Both are recognised by their attributes, since neither need be installed.
    """
    return hasattr(X, "columns") and (_is_pandas(X) or hasattr(X, "get_columns"))


def _is_pandas(X):
    return hasattr(X, "iloc")


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
    """Return the columns of a DataFrame by their names.

    Parameters
    ----------
    X : DataFrame of pandas or polars, of shape (N, F)
    ignored : iterable of str, default=()
        Columns that are not read.

    Returns
    -------
    columns : dict of ndarray of shape (N,)
        Arrays of numbers, with NaN for missing values; object arrays of categories,
        with None for missing values.

    Examples
    --------
    >>> import pandas
    >>> read_columns(pandas.DataFrame({"age": [3, None], "city": [None, "Ulm"]}))
    {'age': array([ 3., nan]), 'city': array([None, 'Ulm'], dtype=object)}
    """
    columns = {}
    for i, name in enumerate(map(str, X.columns)):
        if name in ignored:
            continue
        if _is_pandas(X):
            columns[name] = _read_pandas(name, X.iloc[:, i])
        else:
            columns[name] = _read_polars(name, X.get_columns()[i])
    return columns


def _read_pandas(name, series):
    kind = series.dtype.kind
    if hasattr(series, "cat"):
        categories = _plain_categories(name, series.cat.categories.tolist())
        values = np.fromiter([*categories, None], dtype=object)
        return values[series.cat.codes.to_numpy()]  # -1, the last, is missing
    if kind in "mM":
        raise _times_error(name, series.dtype)
    if kind in "biuf":
        if isinstance(series.dtype, np.dtype):
            return series.to_numpy()
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    values = series.to_numpy(dtype=object).copy()
    values[series.isna().to_numpy(dtype=bool)] = None
    return _read_objects(name, values)


def _read_polars(name, series):
    if series.dtype.is_numeric():
        values = series.to_numpy()
        return series.cast(float).to_numpy() if values.dtype == object else values
    values = series.to_list()
    return _read_objects(name, np.fromiter(values, dtype=object, count=len(values)))


def _read_objects(name, values):
    """Return objects, None where they are missing, as numbers or as categories."""
    is_missing = np.fromiter((value is None for value in values), dtype=bool)
    present = values[~is_missing]
    if not len(present):
        return np.full(len(values), np.nan)
    if _is_text(name, present):
        return values
    numbers = np.full(len(values), np.nan)
    numbers[~is_missing] = [float(value) for value in present]
    return numbers


def _plain_categories(name, categories):
    """Return categories as strings, booleans, integers and floats of Python."""
    if not categories or _is_text(name, categories):
        return [str(category) for category in categories]
    return [_plain_number(category) for category in categories]


def _plain_number(value):
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
    names = ", ".join(sorted(kind.__name__ for kind in types)[:MAX_TYPES])
    if any(issubclass(kind, TIMES) for kind in types):
        raise _times_error(name, names)
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


def _times_error(name, found):
    return InvalidInputError(
        f"Column {name!r} of X contains dates or times ({found}). Replace it by "
        f"numbers, such as the year, the day of the year, or the seconds since the "
        "first date, or put skrub.TableVectorizer() before the ensemble in a pipeline."
    )


def as_float32(name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers as float32; raise if one is infinite, or too large for it.

    Parameters
    ----------
    name : str
        Name of the column.
    values : ndarray of shape (N,)
        Numbers, with NaN for missing values.
    """
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
