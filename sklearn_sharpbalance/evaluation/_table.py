"""Results as columns of one length: a mapping, a DataFrame, a Markdown table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["Table", "markdown_table"]


class Table(Mapping):
    """Columns by name, each an array with one entry per row.

    Parameters
    ----------
    columns : mapping of str to array-like
        Of one length.

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
        self._columns = {name: _column(values) for name, values in columns.items()}
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
        """The table as a pandas DataFrame.

        Returns
        -------
        frame : pandas.DataFrame
        """
        return as_frame(dict(self))

    def to_markdown(self, *, digits=3):
        """The table in Markdown.

        Parameters
        ----------
        digits : int, default=3
            Decimals of the numbers.

        Returns
        -------
        text : str
        """
        rows = zip(*(column.tolist() for column in self._columns.values()))
        cells = [[_cell(value, digits) for value in row] for row in rows]
        numeric = [column.dtype.kind in "iuf" for column in self._columns.values()]
        return markdown_table(list(self), cells, numeric)

    def __repr__(self) -> str:
        columns = ", ".join(self)
        return f"<{type(self).__name__}: {self.n_rows} rows of {columns}>"

    def __str__(self) -> str:
        return self.to_markdown()


def _column(values: Any) -> np.ndarray:
    """One entry per row, also where entries are sequences themselves."""
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        array = np.empty(len(values), dtype=object)
        for i, value in enumerate(values):  # a slice would take them apart
            array[i] = value
        return array
    return np.asarray(values)


def as_frame(columns: Mapping[str, Any]) -> Any:
    """A pandas DataFrame; pandas is only needed here."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "to_frame needs pandas, which is not installed. Run `pip install pandas`, "
            "or use to_markdown() or the columns as arrays: result['mean']."
        ) from error
    return pd.DataFrame(columns)


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> str:
    """A table of strings in Markdown, numbers to the right."""
    rule = ["--:" if right else ":--" for right in numeric]
    lines = [_line(map(_escape, header)), f"|{'|'.join(rule)}|"]
    return "\n".join([*lines, *(_line(map(_escape, row)) for row in rows)])


def number(value: float, digits: int) -> str:
    """A number with so many decimals; a dash for one that is not there."""
    if np.isnan(value):
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no minus before a zero


def _cell(value: Any, digits: int) -> str:
    return number(value, digits) if isinstance(value, float) else str(value)


def _escape(text: str) -> str:
    """Text that stays in its cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
