"""Corruptions of tables: noise, missing values, shifted features, shifted labels.

There is no published standard for tables. The severities here are in units of each
column's standard deviation, or shares of the entries or rows, and grow from hardly
visible to strong.
"""

from typing import Protocol

import numpy as np

from sklearn_sharpbalance.corruption._checks import check_severity, function_name
from sklearn_sharpbalance.corruption._random import resolve_seed, stream_seed
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "TABULAR_CORRUPTIONS",
    "TabularCorruption",
    "corrupt_table",
    "feature_noise",
    "feature_shift",
    "label_shift",
    "missing_nan",
    "missing_values",
]

NOISE = (0.1, 0.2, 0.4, 0.6, 1.0)  # standard deviations
MISSING = (0.05, 0.1, 0.2, 0.3, 0.5)  # share of the entries
SHIFT = (0.1, 0.25, 0.5, 0.75, 1.0)  # standard deviations
LABEL_SHIFT = (0.1, 0.2, 0.35, 0.5, 0.7)  # share of the rows drawn from one class


class TabularCorruption(Protocol):
    """What a kind is: a table, its labels, a reference table; table and labels out.

    A function of ``X``, ``y``, ``severity``, ``rng`` and ``reference``, as
    :func:`feature_noise` is, which describes them.
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
    """Add normal noise of 0.1 to 1 standard deviation of each column.

    Parameters
    ----------
    X : ndarray of shape (N, F), float
        Clean table.
    y : ndarray of shape (N,) or None
        Labels, returned as they are.
    severity : int in 1..5
        How strong.
    rng : numpy.random.Generator
        Source of randomness.
    reference : ndarray of shape (R, F), float
        Table that the columns' mean and standard deviation are taken from.

    Returns
    -------
    X : ndarray of shape (N, F), float
    y : ndarray of shape (N,) or None
    """
    scale = NOISE[severity - 1] * _stds(reference)
    noise = rng.standard_normal(X.shape) * scale
    return (X + noise).astype(X.dtype), y


def missing_values(X, y, severity, rng, reference):
    """Replace 5 % to 50 % of the entries by their column's mean.

    Parameters and the return value are those of :func:`feature_noise`. Writing the
    mean is what a mean imputer would make of a missing value, so that any estimator
    can be tested; :func:`missing_nan` writes NaN instead.
    """
    return _overwrite(X, severity, rng, _means(reference)), y


def missing_nan(X, y, severity, rng, reference):
    """Replace 5 % to 50 % of the entries by NaN.

    Parameters and the return value are those of :func:`feature_noise`. The entries
    are those that :func:`missing_values` hits with an equal generator.
    """
    return _overwrite(X, severity, rng, np.nan), y


def _known(reference):
    """The table with zeros in columns without any value, and which those are."""
    empty = np.isnan(reference).all(axis=0)
    return (np.where(empty, 0, reference) if empty.any() else reference), empty


# Sums over a long float32 column are off by several per cent, hence float64.
def _means(reference):
    known, empty = _known(reference)
    return np.where(empty, np.nan, np.nanmean(known, axis=0, dtype=np.float64))


def _stds(reference):
    known, _ = _known(reference)
    return np.nanstd(known, axis=0, dtype=np.float64)


def _overwrite(X, severity, rng, value):
    hit = rng.random(X.shape) < MISSING[severity - 1]
    return np.where(hit, value, X).astype(X.dtype)


def feature_shift(X, y, severity, rng, reference):
    """Shift each column by 0.1 to 1 standard deviation, up or down at random.

    Parameters and the return value are those of :func:`feature_noise`. All rows move
    together, as when a sensor drifts.
    """
    signs = rng.choice([-1.0, 1.0], size=X.shape[1])
    shift = SHIFT[severity - 1] * signs * _stds(reference)
    return (X + shift).astype(X.dtype), y


def label_shift(X, y, severity, rng, reference):
    r"""Draw the rows anew so that one class becomes frequent.

    Parameters and the return value are those of :func:`feature_noise`; ``y`` is needed.

    Notes
    -----
    A class :math:`c` is picked at random, and N rows are drawn with replacement: with
    probability :math:`q` (0.1 to 0.7) one of class :math:`c`, else any. Its share
    becomes :math:`q + (1 - q)\,p_c`, that of every other class :math:`(1 - q)\,p`.
    """
    if y is None:
        raise InvalidInputError("label_shift draws rows by their label: pass y.")
    rows = _shifted_rows(y, severity, rng)
    return X[rows], y[rows]


def _shifted_rows(y, severity, rng):
    share = LABEL_SHIFT[severity - 1]
    favoured = np.flatnonzero(y == rng.choice(np.unique(y)))
    rows = rng.integers(len(y), size=len(y))
    swap = rng.random(len(y)) < share
    rows[swap] = rng.choice(favoured, size=int(swap.sum()))
    return rows


def original_rows(y, name, severity, random_state):
    """Row of the clean table that each row of ``corrupt_table`` comes from.

    None where rows stay in their places, or where a function of the user's decides.
    """
    if name not in ("label_shift", label_shift):
        return None
    rng = _generator(random_state, "label_shift", severity)
    return _shifted_rows(np.asarray(y), severity, rng)


TABULAR_CORRUPTIONS: dict[str, TabularCorruption] = {
    "feature_noise": feature_noise,
    "missing_values": missing_values,
    "missing_nan": missing_nan,
    "feature_shift": feature_shift,
    "label_shift": label_shift,
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
    function, label = _resolve(name)
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
    # Copies: a function of the caller's may write into what it is given.
    y = None if y is None else y.copy()
    result = function(X.copy(), y, severity, rng, reference.copy())
    if not isinstance(result, tuple) or len(result) != 2:
        raise InvalidInputError(
            f"The corruption {label!r} must return a pair (X, y), but it returned a "
            f"{type(result).__name__}. Return y as it came where labels stay."
        )
    return result


def _generator(random_state, label, severity):
    seed = stream_seed(resolve_seed(random_state), label, severity)
    return np.random.default_rng(seed)


def _resolve(name):
    if isinstance(name, str) and name in TABULAR_CORRUPTIONS:
        return TABULAR_CORRUPTIONS[name], name
    if callable(name):
        return name, function_name(name)
    raise InvalidInputError(
        f"Unknown tabular corruption {name!r}. Choose one of "
        f"{', '.join(repr(key) for key in TABULAR_CORRUPTIONS)}, or pass a function "
        "(X, y, severity, rng, reference) -> (X, y)."
    )


def _check_table(table, what: str) -> np.ndarray:
    if hasattr(table, "select_dtypes"):  # numbers and bools together are objects
        numbers = table.select_dtypes(["number", "bool"])
        if numbers.shape == table.shape and len({*map(str, table.dtypes)}) > 1:
            table = table.to_numpy(np.float64)
    table = np.asarray(table)
    if table.dtype.kind in "iub":
        table = table.astype(np.float64)
    elif table.dtype == np.float16:  # ends at 65504: what is added may lie beyond
        table = table.astype(np.float32)
    if table.ndim != 2 or table.dtype.kind != "f" or not len(table):
        raise InvalidInputError(
            f"{what} must be a numeric table of shape (N, F) with at least one row, "
            f"got {table.dtype} of shape {table.shape}."
        )
    return table
