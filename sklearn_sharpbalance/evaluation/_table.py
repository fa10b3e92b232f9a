"""Results as columns of one length, and numbers as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "Table",
    "decimals",
    "format_mean",
    "format_number",
    "format_spread",
    "markdown_table",
]


class Table(Mapping):
    """Columns by name, each an array with one entry per row.

    Parameters
    ----------
    columns : mapping of str to array-like
        Columns of one length.

    Examples
    --------
    >>> table = Table({"kind": ["fog"], "accuracy": [0.5]})
    >>> table["accuracy"]
    array([0.5])
    >>> print(table.to_markdown())
    | kind | accuracy |
    |:--|--:|
    | fog | 0.500 |
    """

    def __init__(self, columns: Mapping[str, Any]):
        self._columns = {name: _as_column(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidInputError(f"Columns must have one length, got {lengths}.")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def n_rows(self) -> int:
        """Number of rows; ``len`` is the number of columns, as of any mapping."""
        return len(next(iter(self._columns.values()), ()))

    def to_frame(self):
        """Return the table as a pandas DataFrame.

        Returns
        -------
        frame : pandas.DataFrame
        """
        with needing("pandas", "to_frame"):
            import pandas as pd
        return pd.DataFrame(self._columns)

    def to_markdown(self, *, digits=3):
        """Return the table in Markdown.

        Parameters
        ----------
        digits : int, default=3
            Decimals of the numbers.

        Returns
        -------
        text : str
        """
        columns = self._columns.values()
        rows = [
            [_format_entry(value, digits) for value in row]
            for row in zip(*(column.tolist() for column in columns))
        ]
        is_numeric = [column.dtype.kind in "iuf" for column in columns]
        return markdown_table(list(self), rows, is_numeric)

    def __repr__(self) -> str:
        columns = ", ".join(self)
        return f"<{type(self).__name__}: {self.n_rows} rows of {columns}>"

    def __str__(self) -> str:
        return self.to_markdown()


def _as_column(values: Any) -> np.ndarray:
    """Return an array with one entry per row, even if the entries are sequences."""
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        column = np.empty(len(values), dtype=object)
        for i, value in enumerate(values):  # column[:] = values would unpack them
            column[i] = value
        return column
    return np.asarray(values)


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], is_numeric: Sequence[bool]
) -> str:
    """Return a table of strings in Markdown, with numbers aligned to the right."""
    rule = ["--:" if numeric else ":--" for numeric in is_numeric]
    lines = [_markdown_line(header), f"|{'|'.join(rule)}|"]
    return "\n".join([*lines, *(_markdown_line(row) for row in rows)])


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = [
        cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
        for cell in cells
    ]
    return f"| {' | '.join(escaped)} |"


def format_number(value: float, digits: int) -> str:
    """Return a number with this many decimals, or a dash for NaN."""
    if np.isnan(value):
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def _format_entry(value: Any, digits: int) -> str:
    return format_number(value, digits) if isinstance(value, float) else str(value)


def decimals(means: Iterable[float], digits: int) -> int:
    """Return the decimals that show the smallest mean with this many digits.

    Examples
    --------
    >>> decimals([0.95, 0.9], 3), decimals([0.0123], 3), decimals([150.0], 3)
    (3, 4, 1)
    """
    sizes = [abs(mean) for mean in means if np.isfinite(mean) and mean != 0]
    if not sizes:
        return digits
    wanted = digits - 1 - int(np.floor(np.log10(min(sizes))))
    return min(max(wanted, 1), digits + 2)


def format_mean(row: Mapping[str, Any], digits: int, spread: str | None) -> str:
    """Return the mean of a row, followed by its spread."""
    mean = format_number(row["mean"], digits)
    beside = format_spread(row, digits, spread)
    return f"{mean} {beside}" if beside else mean


def format_spread(row: Mapping[str, Any], digits: int, spread: str | None) -> str:
    """Return the spread of a row; empty if the row has none."""
    if spread == "auto":
        spread = "std" if row["n_runs"] > 1 else "interval"
    if spread == "std" and not np.isnan(row["std"]):
        return f"± {format_number(row['std'], digits)}"
    if spread == "interval" and not np.isnan(row["low"]):
        low, high = (format_number(row[end], digits) for end in ("low", "high"))
        return f"[{low}, {high}]"
    return ""
