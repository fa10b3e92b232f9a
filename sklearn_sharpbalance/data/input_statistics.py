"""Center, scale and encoding of the input, from the training samples."""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_sharpbalance.data.inputs import InputFormat, as_array
from sklearn_sharpbalance.data.loading import NamedItems, stack_inputs
from sklearn_sharpbalance.data.statistics import (
    class_steps,
    linear_pieces,
    moments,
    quartiles,
    relevance,
    row_blocks,
    scale_or_one,
    warn_of_rounding,
)
from sklearn_sharpbalance.data.training_data import ArrayRows

__all__ = ["InputStatistics", "input_statistics", "n_pieces"]

STATISTICS_ITEMS = 4096  # images or items to read: a full pass may take minutes
CLIP = 3.0  # bound of the features of a table, in their scale
PIECES = 16  # of each column of numbers in the encoding for the default network
STEPS = 16  # of each of these columns, at most
ROWS_PER_COLUMN = 100  # fewest rows for each of these columns
MAX_ENCODED = 2**26  # numbers of an encoded table
WIDE = 100  # columns of numbers of a table that may be scaled down


class InputStatistics(NamedTuple):
    """How members standardise their input, see ``MemberModule``."""

    center: torch.Tensor
    scale: torch.Tensor
    clip: float | None = None
    pieces: torch.Tensor | None = None


def n_pieces(fmt: InputFormat, n_rows: int) -> int:
    """Return the number of pieces between quantiles that encode a table.

    It is zero for other inputs, for tables with few rows for each column of numbers,
    and for tables so large that their encoding would take much memory.

    Examples
    --------
    >>> [n_pieces(InputFormat("table", (5,), (5,)), n_rows) for n_rows in (400, 4000)]
    [0, 80]
    """
    if fmt.kind not in ("table", "frame"):
        return 0
    n_numbers = len(_number_columns(fmt))
    n_encoded = PIECES * n_numbers
    fits = n_rows * n_encoded <= MAX_ENCODED
    return n_encoded if fits and n_rows >= ROWS_PER_COLUMN * n_numbers else 0


def _number_columns(fmt):
    """Return the positions of a table's columns that are not codes of categories."""
    if fmt.columns is None:
        return np.arange(fmt.shape[0] if len(fmt.shape) == 1 else 0)
    return np.flatnonzero(~fmt.columns.is_code)


def _dense_columns(X, center, fmt):
    """Return the positions of the columns of numbers in which most values differ.

    The others are zeros and ones, or counts of rare events: each says something of few
    rows only, so that no tree could tell whether it is relevant.
    """
    n_equal = sum((center == X[rows]).sum(axis=0) for rows in row_blocks(X))
    is_dense = n_equal < 0.5 * len(X)
    numbers = _number_columns(fmt)
    return numbers[is_dense[numbers]]


def input_statistics(data, fmt, *, encode=False):
    """Return how to standardise the input; None for dictionaries.

    Features of a table or sequence have the median as center and a scale by the
    quartiles, and are bounded; in a table with many columns of numbers, those without a
    relation to the classes are scaled down. Channels of images have mean and standard
    deviation, and no bound. The scale of a constant feature is one. Columns of zeros
    and ones that encode categories and missing values have center zero and scale one,
    since a rare one would get a large weight otherwise. ``encode`` adds the pieces of a
    piecewise linear encoding of a table, and steps where the classes change.
    """
    if fmt.kind == "dict":
        return None
    X, y, weight = data.X, data.y, data.weight
    rows = np.arange(len(X))
    if fmt.kind == "dataset" or X.ndim == 4:
        if weight is not None and weight.any():
            rows = np.flatnonzero(weight > 0)
        rows = rows[:: max(1, len(rows) // STATISTICS_ITEMS)]
        y, weight = y[rows], None if weight is None else weight[rows]
    if fmt.kind == "dataset":
        items = NamedItems(X)
        X = stack_inputs([as_array(items[i][0]) for i in rows.tolist()])
        if X.ndim < 4:
            warn_of_rounding(X)
    elif X.ndim == 4:
        X = ArrayRows(X, rows)
    if X.ndim == 4:
        center, scale = moments(X, weight)
        scale = scale_or_one(center, scale)
        return InputStatistics(_tensor(center, (-1, 1, 1)), _tensor(scale, (-1, 1, 1)))
    shape, X = X.shape[1:], X.reshape(len(X), -1)
    center, scale = quartiles(X, weight)
    if fmt.columns is not None:
        center = np.where(fmt.columns.is_code, 0.0, center)
        scale = np.where(fmt.columns.is_code, 1.0, scale)
    scale = scale_or_one(center, scale)
    dense = _dense_columns(X, center, fmt)
    if len(dense) >= WIDE and len(X) < 10 * len(dense):
        scale[dense] /= relevance(X, y, weight, dense)
    pieces = None
    if encode:
        columns = _number_columns(fmt)
        Z = (X[:, columns] - center[columns]) / scale[columns]
        found = linear_pieces(Z, PIECES, weight)
        if Z.size * (PIECES + STEPS) <= MAX_ENCODED:
            found = np.hstack([found, class_steps(Z, y, STEPS, weight)])
        found[0] = columns[found[0].astype(int)]  # positions among all columns
        pieces = torch.tensor(found, dtype=torch.float32)
    return InputStatistics(
        _tensor(center, shape), _tensor(scale, shape), clip=CLIP, pieces=pieces
    )


def _tensor(values, shape):
    return torch.tensor(values.reshape(shape), dtype=torch.float32)
