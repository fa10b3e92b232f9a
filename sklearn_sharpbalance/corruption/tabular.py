"""Corruptions of tables: noise, missing values, shifted features, shifted labels.

There is no published standard for tables. The severities are in units of each column's
standard deviation, or fractions of the entries or rows, from hardly visible to strong.
"""

from typing import Protocol

import numpy as np

from sklearn_sharpbalance._validation import check_seed
from sklearn_sharpbalance.corruption._base import check_severity, resolve, stream_seed
from sklearn_sharpbalance.exceptions import InvalidInputError

NOISE = (0.1, 0.2, 0.4, 0.6, 1.0)  # standard deviations
MISSING = (0.05, 0.1, 0.2, 0.3, 0.5)  # fraction of the entries
SHIFT = (0.1, 0.25, 0.5, 0.75, 1.0)  # standard deviations
LABEL_SHIFT = (0.1, 0.2, 0.35, 0.5, 0.7)  # fraction of the rows drawn from one class
TABLE_SIGNATURE = "(X, y, severity, rng, reference) -> (X, y)"


class TabularCorruption(Protocol):
    """A function that corrupts a table and its labels, as all five kinds are.

    Parameters
    ----------
    X : ndarray of shape (N, F), float
        Clean table.
    y : ndarray of shape (N,) or None
        Labels; all kinds except ``label_shift`` return them unchanged.
    severity : int in 1..5
        How strong.
    rng : numpy.random.Generator
        Source of randomness.
    reference : ndarray of shape (R, F), float
        Table to compute the mean and standard deviation of each column from.

    Returns
    -------
    X : ndarray of shape (N, F), float
    y : ndarray of shape (N,) or None
    """

    def __call__(
        self,
        X: np.ndarray,
        y: np.ndarray | None,
        severity: int,
        rng: np.random.Generator,
        reference: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray | None]: ...


def feature_noise(X, y, severity, rng, reference):
    """Add normal noise of 0.1 to 1 standard deviation of each column."""
    scale = NOISE[severity - 1] * _stds(reference)
    noise = rng.standard_normal(X.shape) * scale
    return (X + noise).astype(X.dtype), y


def missing_values(X, y, severity, rng, reference):
    """Replace 5 % to 50 % of the entries by their column's mean.

    The mean is the value that a mean imputer would write, so that any estimator can be
    tested; :func:`missing_nan` writes NaN instead.
    """
    return _overwrite(X, severity, rng, _means(reference)), y


def missing_nan(X, y, severity, rng, reference):
    """Replace 5 % to 50 % of the entries by NaN."""
    return _overwrite(X, severity, rng, np.nan), y


def _known(reference):
    """Return the table with zeros in empty columns, and which columns are empty."""
    empty = np.isnan(reference).all(axis=0)
    if empty.any():
        reference = np.where(empty, 0, reference)
    return reference, empty


# In float64: sums over a long float32 column have errors of several per cent.
def _means(reference):
    known, empty = _known(reference)
    return np.where(empty, np.nan, np.nanmean(known, axis=0, dtype=np.float64))


def _stds(reference):
    known, _ = _known(reference)
    return np.nanstd(known, axis=0, dtype=np.float64)


def _overwrite(X, severity, rng, value):
    is_missing = rng.random(X.shape) < MISSING[severity - 1]
    return np.where(is_missing, value, X).astype(X.dtype)


def feature_shift(X, y, severity, rng, reference):
    """Shift each column by 0.1 to 1 standard deviation, up or down at random.

    All rows move together, as when a sensor drifts.
    """
    signs = rng.choice([-1.0, 1.0], size=X.shape[1])
    shift = SHIFT[severity - 1] * signs * _stds(reference)
    return (X + shift).astype(X.dtype), y


def label_shift(X, y, severity, rng, reference):
    r"""Resample the rows so that one class becomes frequent.

    Notes
    -----
    A class :math:`c` is drawn at random, and N rows are drawn with replacement: with
    probability :math:`q` (0.1 to 0.7) from class :math:`c`, else from all. The
    fraction of the class becomes :math:`q + (1 - q)\,p_c`, that of every other class
    :math:`(1 - q)\,p`.
    """
    if y is None:
        raise InvalidInputError("label_shift needs the labels, got y=None. Pass y.")
    rows = _shifted_rows(y, severity, rng)
    return X[rows], y[rows]


def _shifted_rows(y, severity, rng):
    fraction = LABEL_SHIFT[severity - 1]
    favoured = np.flatnonzero(y == rng.choice(np.unique(y)))
    rows = rng.integers(len(y), size=len(y))
    swap = rng.random(len(y)) < fraction
    rows[swap] = rng.choice(favoured, size=int(swap.sum()))
    return rows


def original_rows(y, name, severity, random_state):
    """Return the row of the clean table of each row that ``corrupt_table`` returns.

    Return None if rows keep their places, or for a function of the user.
    """
    if name not in ("label_shift", label_shift):
        return None
    rng = _generator(random_state, "label_shift", severity)
    return _shifted_rows(np.asarray(y), severity, rng)


TABULAR_CORRUPTIONS: dict[str, TabularCorruption] = {
    kind.__name__: kind
    for kind in (feature_noise, missing_values, missing_nan, feature_shift, label_shift)
}


def corrupt_table(X, y, name, severity, *, reference=None, random_state=None):
    """Corrupt a table with one kind at one severity.

    Parameters
    ----------
    X : array-like of shape (N, F), float
        Clean table.
    y : array-like of shape (N,) or None
        Labels; needed by "label_shift" only.
    name : str or callable
        A key of ``TABULAR_CORRUPTIONS``, or a function
        ``(X, y, severity, rng, reference) -> (X, y)``.
    severity : int
        1 (mild) to 5 (strong).
    reference : array-like of shape (R, F), default=None
        Table that means and standard deviations come from, usually the training set;
        None takes ``X``.
    random_state : None, int, Generator or RandomState, default=None
        Seed. Each kind and severity has its own stream under one seed.

    Returns
    -------
    X : ndarray of shape (N, F), of the floating type of the input; float32 for float16
    y : ndarray of shape (N,) or None

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_sharpbalance.corruption import corrupt_table
    >>> X = np.array([[0.0], [2.0]])
    >>> shifted, _ = corrupt_table(X, None, "feature_shift", 5, random_state=0)
    >>> np.abs(shifted - X).ravel()  # one standard deviation
    array([1., 1.])
    """
    severity = check_severity(severity)
    function, label = resolve(name, TABULAR_CORRUPTIONS, TABLE_SIGNATURE)
    X = _check_table(X, "X")
    y = None if y is None else np.asarray(y)
    if y is not None and y.shape != (len(X),):
        raise InvalidInputError(f"y must have shape ({len(X)},), got {y.shape}.")
    reference = X if reference is None else _check_table(reference, "reference")
    if reference.shape[1] != X.shape[1]:
        raise InvalidInputError(
            f"reference has {reference.shape[1]} columns, X has {X.shape[1]}. They "
            "must be tables of the same features."
        )
    rng = _generator(random_state, label, severity)
    # Pass copies: a function of the user may change them.
    y = None if y is None else y.copy()
    result = function(X.copy(), y, severity, rng, reference.copy())
    if not isinstance(result, tuple) or len(result) != 2:
        raise InvalidInputError(
            f"The corruption {label!r} must return a pair (X, y), but it returned a "
            f"{type(result).__name__}. Return y unchanged if labels stay the same."
        )
    return result


def _generator(random_state, label, severity):
    seed = stream_seed(check_seed(random_state), label, severity)
    return np.random.default_rng(seed)


def _check_table(table, what: str) -> np.ndarray:
    if hasattr(table, "select_dtypes"):  # numbers and bools would become objects
        numbers = table.select_dtypes(["number", "bool"])
        if numbers.shape == table.shape and len({*map(str, table.dtypes)}) > 1:
            table = table.to_numpy(np.float64)
    table = np.asarray(table)
    if table.dtype.kind in "iub":
        table = table.astype(np.float64)
    elif table.dtype == np.float16:  # at most 65504: sums may overflow
        table = table.astype(np.float32)
    if table.ndim != 2 or table.dtype.kind != "f" or not len(table):
        raise InvalidInputError(
            f"{what} must be a numeric table of shape (N, F) with at least one row, "
            f"got {table.dtype} of shape {table.shape}."
        )
    return table
