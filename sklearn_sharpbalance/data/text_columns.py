"""The error for columns of an array that are not numbers."""

from datetime import date, timedelta
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["text_columns_error"]

MAX_NAMES = 5  # in the message


def text_columns_error(X: Any) -> InvalidInputError | None:
    """Return the error for an array with text or dates; None if it has none.

    Columns of a DataFrame are encoded in ``fit``, which knows their types. An array
    has one type for all columns, and so has a DataFrame after a fit on an array.

    Call it after the conversion to numbers has failed, since it looks at every value.

    Parameters
    ----------
    X : DataFrame or array-like of shape (N, F)

    Returns
    -------
    error : InvalidInputError or None
        It names the columns and says how to encode them.

    Examples
    --------
    >>> print(text_columns_error([[1.0, "Bonn"], [2.0, "Ulm"]]))
    X contains text or dates in 1 of 2 columns: 1 (such as 'Bonn'). ...
    """
    if _is_numeric(X):
        return None
    columns = getattr(X, "columns", None)
    try:
        table = np.asarray(X, dtype=object)
    except (TypeError, ValueError):  # rows of different lengths, say
        return None
    if table.ndim != 2:
        return None
    names = list(range(table.shape[1]) if columns is None else columns)
    found = {}
    for name, values in zip(names, table.T):
        for value in values:
            if _is_text(value):
                found[name] = value
                break
    if not found:
        return None
    shown = [f"{name!r} (such as {found[name]!r})" for name in list(found)[:MAX_NAMES]]
    if len(found) > MAX_NAMES:
        shown.append("...")
    return InvalidInputError(
        f"X contains text or dates in {len(found)} of {len(names)} columns: "
        f"{', '.join(shown)}. Pass a pandas or polars DataFrame, to fit as well: its "
        "columns of text are encoded as categories, and its columns of numbers stay "
        "numbers. Or encode these columns in a pipeline before the ensemble, for "
        "example make_pipeline(make_column_transformer((OneHotEncoder("
        f"handle_unknown='ignore', sparse_output=False), {list(found)[:MAX_NAMES]!r}), "
        "remainder='passthrough'), ensemble)."
    )


def _is_numeric(X):
    """Return whether X can be converted to numbers, which is quick to try."""
    if getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return True
    try:
        np.asarray(X, dtype=np.float32)
    except (TypeError, ValueError):
        return False
    return True


def _is_text(value):
    """Return whether a value is text that is not a number, a date or a duration."""
    if isinstance(value, date | timedelta | np.datetime64 | np.timedelta64):
        return True
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False
