"""How the columns of a DataFrame become numbers, learned in ``fit``.

Numbers stay numbers; missing ones are replaced by the median, with a column of their
own that marks them. Categories become columns of zeros and ones, one for each category:
the first linear layer of a network then holds a learned vector for each of them.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_sharpbalance.data.frames import as_float32
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

__all__ = ["COLUMN_KINDS", "MAX_CATEGORIES", "Column", "TableColumns"]

COLUMN_KINDS = ("number", "category", "ignored")
MIN_ROWS = 3  # of a category that gets a code of its own
MAX_CATEGORIES = 254  # codes of a column, as in HistGradientBoostingClassifier
MAX_NAMES = 5  # in a message


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
        """Write the encoded column.

        Parameters
        ----------
        values : ndarray of shape (N,)
            From :func:`~sklearn_sharpbalance.data.frames.read_columns`.
        out : ndarray of shape (N, n_numbers + n_codes)
            Zeros.
        """
        if self.kind == "number":
            self._encode_numbers(values, out)
        elif self.kind == "category":
            self._encode_categories(values, out)

    def _encode_numbers(self, values, out):
        if values.dtype == object:  # categories at prediction
            values = np.array([self._as_number(value) for value in values])
        numbers = as_float32(self.name, values)
        is_missing = np.isnan(numbers)
        out[:, 0] = np.where(is_missing, np.float32(self.fill), numbers)
        if self.has_missing:
            out[:, 1] = is_missing

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
    """How a DataFrame becomes a float32 matrix.

    Only plain values, so that a model file can store them. scikit-learn's
    ``OneHotEncoder`` has the same rules for rare and unknown categories, but its fitted
    state is objects and private attributes.

    Attributes
    ----------
    columns : tuple of Column
        One for each column of the frame.
    """

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, values: dict[str, np.ndarray]) -> "TableColumns":
        """Learn the columns of the training samples.

        Parameters
        ----------
        values : dict of ndarray of shape (N,)
            From :func:`~sklearn_sharpbalance.data.frames.read_columns`.
        """
        columns = tuple(_fit_column(name, column) for name, column in values.items())
        fitted = cls(columns)
        if not fitted.width:
            raise InvalidInputError(
                f"All values of X are missing in all of its {len(columns)} columns. "
                "Pass samples with values."
            )
        return fitted

    def transform(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """Return the encoded columns.

        Parameters
        ----------
        values : dict of ndarray of shape (N,)
            The same columns as in :meth:`fit`; those that are ignored may be missing.

        Returns
        -------
        X : ndarray of shape (N, width), dtype float32

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

    def warning(self) -> SharpBalanceWarning | None:
        """Return a warning that names the columns that are ignored; None if none is."""
        ignored = self.ignored
        if not ignored:
            return None
        named = ", ".join(map(repr, ignored[:MAX_NAMES]))
        more = ", ..." if len(ignored) > MAX_NAMES else ""
        return SharpBalanceWarning(
            f"X has no value in {len(ignored)} of {len(self.columns)} columns: "
            f"{named}{more}. They are ignored, also in predictions. Drop them to "
            "silence this warning."
        )


def _fit_column(name, values):
    if values.dtype == object:
        return _fit_categories(name, values)
    is_missing = np.isnan(values)
    if is_missing.all():
        return Column(name=name, kind="ignored")
    return Column(
        name=name,
        kind="number",
        fill=float(np.median(values[~is_missing])),
        has_missing=bool(is_missing.any()),
    )


def _fit_categories(name, values):
    counts = Counter(values.tolist())
    n_missing = counts.pop(None, 0)
    if not counts:
        return Column(name=name, kind="ignored")
    by_count = sorted(sorted(counts), key=lambda category: -counts[category])
    frequent = [category for category in by_count if counts[category] >= MIN_ROWS]
    kept = frequent[:MAX_CATEGORIES]
    return Column(
        name=name,
        kind="category",
        categories=tuple(sorted(map(_plain, kept))),
        has_rare=len(kept) < len(counts),
        has_missing=n_missing > 0,
    )


def _plain(category):
    """Return text as ``str`` of Python, not of a subclass such as that of NumPy."""
    return str(category) if isinstance(category, str) else category
