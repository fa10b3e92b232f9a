"""Validation of X, and the layout in which modules see it."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, validate_data
from skorch.helper import SliceDataset

from sklearn_sharpbalance.arrays import to_array
from sklearn_sharpbalance.data.columns import (
    MAX_NAMES,
    TIMES,
    TableColumns,
    as_float32,
    check_names,
    is_frame,
    is_number,
    named,
    read_columns,
)
from sklearn_sharpbalance.data.statistics import (
    rounded_columns,
    warn_of_columns,
    warn_of_rounding,
)
from sklearn_sharpbalance.data.training_data import (
    SlicedItems,
    as_pairs,
    check_input,
    is_dataset,
    is_on_disk,
)
from sklearn_sharpbalance.datasets import Pairs, Stream
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

__all__ = [
    "InputFormat",
    "as_array",
    "check_X",
    "check_layout",
    "check_unmasked",
    "encode_frame",
    "other_layout",
    "refuse_stream",
]

IMAGE_CHANNELS = (1, 3, 4)
BYTES = (100, 255)  # bounds of the largest value of 8 bit, as a rule
UNIT = (1, 10)  # largest value of scaled tables, and of scaled or standardised images


@dataclass(frozen=True)
class InputFormat:
    """Layout of the samples of a fit.

    Attributes
    ----------
    kind : str
        "table", "frame", "images", "array", "dict" or "dataset".
    given_shape : tuple of int or None
        Shape of one sample as the user passes it.
    shape : tuple of int or None
        Shape of one sample as the module sees it; images have channels first,
        and columns of a DataFrame are encoded.
    dtype : str
        "uint8" for uint8 images, else "float32".
    keys : tuple of str or None
        Keys of a dictionary of inputs.
    shapes : tuple of tuple of int, or None
        Shape of one sample of each of these inputs.
    columns : TableColumns or None
        How a DataFrame is encoded; None before it is known, and for other inputs.
    largest : float or None
        Largest magnitude in the data of the fit; None for frames and dictionaries.
    """

    kind: str
    given_shape: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    dtype: str = "float32"
    keys: tuple[str, ...] | None = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    columns: TableColumns | None = None
    largest: float | None = None

    @property
    def has_three_axes(self) -> bool:
        """Whether a sample has three axes, as an image (C, H, W)."""
        return self.shape is not None and len(self.shape) == 3

    @property
    def is_uint8_images(self) -> bool:
        """Whether the module sees images (C, H, W) of uint8."""
        shape, is_uint8 = self.shape or (), self.dtype == "uint8"
        return is_uint8 and self.has_three_axes and shape[0] in IMAGE_CHANNELS

    def to_module(self, X):
        """Convert from the user's layout to the module's; memory maps become views."""
        if self.kind == "images" and self.given_shape != self.shape:
            if len(self.given_shape or ()) == 2:  # grey, without a channel axis
                X = X[:, None]
            else:
                X = np.moveaxis(X, -1, 1)
        if is_on_disk(X) and not X.flags.c_contiguous:
            return X
        # In C order, with the strides of a new array: numpy leaves those of axes of
        # length one undefined, but torch recognises channels-last tensors by them.
        return np.ascontiguousarray(X).reshape(-1).reshape(X.shape)

    def item_to_module(self, x):
        """Convert one sample of a Dataset to the module's layout."""
        if tuple(x.shape) != self.given_shape:
            raise InvalidInputError(
                "The inputs of a Dataset must have one shape, got "
                f"{self.given_shape} and {tuple(x.shape)}. Give it a transform such as "
                "torchvision.transforms.v2.Resize."
            )
        return self.to_module(as_array(x)[None])[0]

    def __str__(self):
        if self.kind == "dict":
            pairs = zip(self.keys or (), self.shapes or ())
            shapes = ", ".join(f"{key!r} of shape {shape}" for key, shape in pairs)
            return f"a dictionary of {shapes}"
        if self.kind == "frame":
            return f"a DataFrame of {(self.given_shape or ())[0]} columns"
        if self.shape in (None, self.given_shape):
            return f"samples of shape {self.given_shape}"
        return f"samples of shape {self.given_shape}, seen as {self.shape}"


def check_X(estimator, X, *, reset, fitted=None):
    """Return X, validated and in the layout that the module sees, and its format.

    The columns of a DataFrame are encoded by :func:`encode_frame` in ``fit``. ``reset``
    is True in ``fit``, where the estimator gets ``n_features_in_`` and
    ``feature_names_in_``. Otherwise X is compared with the data of the fit, and a
    Dataset may have no labels. The ``fitted`` format decides whether arrays (N, H, W)
    are grey images. Anything with a length and items by index is a Dataset.
    """
    if isinstance(X, SliceDataset):
        X = SlicedItems(X)
    is_dict = isinstance(X, Mapping) and not issparse(X)  # dok_matrix is a Mapping
    is_items = not is_dict and not is_frame(X) and is_dataset(X)
    if reset and (is_dict or is_items):
        for name in ("n_features_in_", "feature_names_in_"):  # from an earlier fit
            vars(estimator).pop(name, None)
    if is_items:
        return _check_dataset(X, labelled=reset, fitted=fitted)
    if is_dict:
        return _check_dict(X)
    of_frame = reset or (fitted is not None and fitted.kind == "frame")
    if is_frame(X) and of_frame and all(X.shape):
        return _check_frame(estimator, X, reset=reset, fitted=fitted)
    if not is_frame(X) and fitted is not None and fitted.columns is not None:
        _check_replaces_frame(estimator, fitted.columns)
    X = as_array(X) if torch.is_tensor(X) else X
    check_unmasked(X, "X")
    given, X = X, _numeric(estimator, X, reset=reset, fitted=fitted)
    if reset and _is_bytes(X):
        X = X.astype(np.uint8)  # the same images get the same defaults
    fmt = _array_format(X, fitted)
    if reset and fmt.kind != "images":
        warn_of_rounding(given, getattr(estimator, "feature_names_in_", None))
    # That of uint8 images is given by the dtype.
    is_uint8 = X.ndim > 2 and X.dtype == np.uint8
    largest = 255.0 if is_uint8 else max(X.max(initial=0.0), -X.min(initial=0.0))
    fmt = _with_range(fmt, float(largest), fitted)
    return fmt.to_module(X), fmt


def _numeric(estimator, X, *, reset, fitted):
    """Return an array-like as a float32 array; images of uint8 stay uint8."""
    has_axes = getattr(X, "ndim", 2) > 2
    is_uint8 = has_axes and getattr(X, "dtype", None) == np.uint8
    keep_uint8 = is_uint8 and (fitted is None or fitted.kind != "array")
    options = {
        "dtype": np.uint8 if keep_uint8 else np.float32,
        "order": None if is_on_disk(X) else "C",
        "allow_nd": True,
    }
    if getattr(getattr(X, "dtype", None), "kind", None) in ("m", "M"):
        raise InvalidInputError(
            f"X is an array of dates or times ({X.dtype}). Replace them by numbers, "
            "such as the year, or the days since the first date."
        )
    if has_axes and not reset:
        # Do not check n_features_in_: images may have channels first or last.
        return check_array(X, input_name="X", estimator=estimator, **options)
    try:
        return validate_data(estimator, X, reset=reset, **options)
    except (TypeError, ValueError) as error:
        explained = None if issparse(X) else _text_columns_error(X)
        raise explained or error from error


def check_unmasked(values: Any, name: str) -> None:
    """Raise if values of an array are masked: members would see what is behind."""
    if np.ma.is_masked(values):
        raise InvalidInputError(
            f"{name} is a masked array with {np.ma.count_masked(values)} masked "
            "values. Fill them. To impute missing values of X, pass a "
            "pandas.DataFrame(X.astype(float).filled(numpy.nan))."
        )


def _is_bytes(X):
    """Whether images with a channel axis have whole numbers in 0 to 255."""
    if X.ndim != 4 or not {X.shape[1], X.shape[-1]} & {*IMAGE_CHANNELS}:
        return False
    if X.dtype == np.uint8 or (X[:1] % 1).any():
        return False
    return X.min() >= 0 and 1 < X.max() <= 255 and not (X % 1).any()


def _with_range(fmt, largest, fitted):
    """Keep the largest magnitude of the fit; warn if X has another scale."""
    if fitted is None or fitted.largest is None:
        return replace(fmt, largest=largest)
    low, high = sorted([largest, fitted.largest])
    is_scaled = 0 < low <= UNIT[len(fmt.shape) > 1]
    if is_scaled and BYTES[0] < high <= BYTES[1]:
        warnings.warn(
            f"The values of X go up to {largest:.4g}, but those of fit went up to "
            f"{fitted.largest:.4g}: one of them may be in 0 to 255, and the other "
            "scaled. Scale X as for fit.",
            SharpBalanceWarning,
            stacklevel=2,
        )
    return replace(fmt, largest=fitted.largest)


def _check_frame(estimator, X, *, reset, fitted):
    """Return the columns of a DataFrame, encoded if ``fitted`` knows how to."""
    check_names(X)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    columns = None if fitted is None else fitted.columns
    if columns is not None and not reset:
        _check_same_names(columns, list(map(str, X.columns)))
        encoded = columns.transform(read_columns(X, ignored=columns.ignored))
        return encoded, _with_range(fitted, _largest_number(encoded, columns), fitted)
    values = read_columns(X)
    if reset:
        warn_of_columns([repr(name) for name in values if _is_rounded(values[name])])
    values = {
        name: column if column.dtype == object else as_float32(name, column)
        for name, column in values.items()
    }
    return values, InputFormat("frame", (len(values),), None)


def _check_same_names(columns, names):
    """Raise if columns are missing; scikit-learn does not compare names of integers."""
    missing = [name for name in columns.names if name not in names]
    if missing:
        raise InvalidInputError(
            f"X has no columns {named(missing)}, which it had in fit; it has the "
            f"columns {named(names)}. Pass a DataFrame with the same columns."
        )


def _is_rounded(column):
    """Return whether float32 rounds away the numbers of a column."""
    if column.dtype.kind == "f":
        column = column[np.isfinite(column)]
    return bool(rounded_columns(column[:, None]))


def _check_replaces_frame(estimator, columns):
    """Raise unless an array has the same meaning as the DataFrame of the fit."""
    if columns.is_plain:
        return
    encoded = [c.name for c in columns.columns if c.kind != "number" or c.n_codes]
    raise InvalidInputError(
        f"{type(estimator).__name__} was fitted on a DataFrame with categories or "
        f"missing values in {named(encoded)}, but X is not a DataFrame. Pass a "
        "DataFrame with the same columns."
    )


def encode_frame(data, fmt, fitted=None):
    """Encode the columns of a DataFrame as the training samples have them.

    Validation samples must not decide how columns are encoded, nor do samples of weight
    zero. ``fitted`` are the columns of an earlier fit, for a warm start; None learns
    them. Other data are returned unchanged.
    """
    if fmt.kind != "frame" or fmt.columns is not None:
        return data, fmt
    columns = fitted
    if columns is None:
        values = data.X
        if data.weight is not None:
            values = {name: each[data.weight > 0] for name, each in values.items()}
        columns = TableColumns.fit(values)
        columns.warn(values)
    elif columns.names != list(data.X):
        raise InvalidInputError(
            "warm_start=True starts from weights that were fitted to the columns "
            f"{columns.names[:10]}, but X has the columns {list(data.X)[:10]}. Pass a "
            "DataFrame with the same columns, or set warm_start=False."
        )
    fmt = replace(fmt, shape=(columns.width,), columns=columns)
    valid = data.valid
    if valid is not None:
        valid = replace(valid, X=columns.transform(valid.X))
    encoded = columns.transform(data.X)
    used = encoded if data.weight is None else encoded[data.weight > 0]
    fmt = replace(fmt, largest=_largest_number(used, columns))
    return replace(data, X=encoded, valid=valid), fmt


def _largest_number(encoded, columns):
    """Return the largest magnitude in the columns of numbers."""
    numbers = encoded[:, ~columns.is_code]
    return float(max(numbers.max(initial=0.0), -numbers.min(initial=0.0)))


def check_layout(estimator, fmt, fitted):
    """Raise unless samples have the layout of the fit."""
    if fmt.shape != fitted.shape or fmt.keys != fitted.keys:
        raise other_layout(estimator, fmt, fitted)


def other_layout(estimator, fmt, fitted):
    """Return the error for samples of another layout than those of the fit."""
    name = type(estimator).__name__
    return InvalidInputError(f"X is {fmt}, but {name} was fitted on {fitted}.")


def _array_format(X, fitted=None):
    shape = X.shape[1:]
    if len(shape) == 1:
        return InputFormat("table", shape, shape)
    dtype = str(X.dtype)
    as_fitted = fitted is not None and fitted.shape == (1, *shape)
    if len(shape) == 2 and (X.dtype == np.uint8 or as_fitted):
        return InputFormat("images", shape, (1, *shape), dtype=dtype)
    if len(shape) == 3 and shape[0] in IMAGE_CHANNELS:
        return InputFormat("images", shape, shape, dtype=dtype)
    if len(shape) == 3 and shape[-1] in IMAGE_CHANNELS:
        channels_first = (shape[-1], *shape[:-1])
        return InputFormat("images", shape, channels_first, dtype=dtype)
    if X.dtype == np.uint8:
        raise InvalidInputError(
            f"Images must be (N, H, W, C) or (N, C, H, W) with C in "
            f"{IMAGE_CHANNELS}, or (N, H, W); got uint8 of shape {X.shape}."
        )
    return InputFormat("array", shape, shape)


def _check_dataset(dataset, labelled, fitted):
    dataset, item = as_pairs(dataset)
    x = check_input(dataset, item, labelled)
    is_uint8 = x.dtype in (torch.uint8, np.uint8)
    largest = 255.0 if is_uint8 else float(abs(as_array(x)).max(initial=0.0))
    given = tuple(x.shape)
    fmt = _item_format(as_array(x)[None], fitted)
    dtype = "uint8" if is_uint8 else "float32"
    items = replace(fmt, kind="dataset", dtype=dtype)
    if fmt.shape != given and isinstance(dataset, Stream):
        dataset = dataset.for_fit(dataset.n_buffer, fmt.item_to_module)
    elif fmt.shape != given:
        dataset = Pairs(dataset, to_module=fmt.item_to_module)
    return dataset, _with_range(items, largest, fitted)


def refuse_stream(X) -> None:
    """Raise that samples of a stream have no order."""
    if isinstance(X, Stream):
        raise InvalidInputError(
            "A stream has no order in which samples could be predicted. Pass an array, "
            "or a Dataset with an index."
        )


def _item_format(X, fitted):
    """Return the layout of an item, as of an array; uint8 may have any channels."""
    shape = X.shape[1:]
    is_image = len(shape) == 3 and {shape[0], shape[-1]} & {*IMAGE_CHANNELS}
    if X.dtype == np.uint8 and len(shape) > 2 and not is_image:
        return InputFormat("array", shape, shape)
    return _array_format(X, fitted)


def _check_dict(X):
    if not X:
        raise InvalidInputError("X is an empty dictionary. Pass one array per input.")
    arrays = {}
    for key, value in X.items():
        value = as_array(value) if torch.is_tensor(value) else value
        check_unmasked(value, f"X[{key!r}]")
        array = check_array(
            value, order="C", allow_nd=True, ensure_2d=False, input_name=key
        )
        floating = np.issubdtype(array.dtype, np.floating)
        arrays[key] = array.astype(np.float32 if floating else array.dtype, copy=False)
    check_consistent_length(*arrays.values())
    keys = tuple(sorted(arrays))
    shapes = tuple(arrays[key].shape[1:] for key in keys)
    return arrays, InputFormat("dict", None, None, keys=keys, shapes=shapes)


def as_array(values):
    """Convert a tensor to an array; float dtypes that numpy lacks become float32."""
    numpy_floats = (torch.float16, torch.float32, torch.float64)
    if torch.is_tensor(values) and values.is_floating_point():
        values = values if values.dtype in numpy_floats else values.float()
    return to_array(values)


def _text_columns_error(X: Any) -> InvalidInputError | None:
    """Return the error for an array with text or dates; None if it has none.

    An array has one type for all columns. Call it after the conversion to numbers has
    failed, since it looks at every value.
    """
    if getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return None
    try:
        table = np.asarray(X, dtype=object)
    except (TypeError, ValueError):  # rows of different lengths, say
        return None
    if table.ndim != 2:
        return None
    names = getattr(X, "columns", range(table.shape[1]))
    firsts = (next(filter(_is_no_number, column), None) for column in table.T)
    found = {name: first for name, first in zip(names, firsts) if first is not None}
    if not found:
        return None
    shown = [f"{name!r} (such as {found[name]!r})" for name in list(found)[:MAX_NAMES]]
    return InvalidInputError(
        f"X contains text or dates in {len(found)} of {len(table.T)} columns: "
        f"{', '.join(shown)}{', ...' if len(found) > MAX_NAMES else ''}. Pass a pandas "
        "or polars DataFrame, to fit as well: its columns of text are encoded as "
        "categories, and its columns of numbers stay numbers. Or encode these columns "
        "in a pipeline before the ensemble, with scikit-learn's OneHotEncoder."
    )


def _is_no_number(value):
    """Return whether a value is a date, or text that is not a number."""
    return isinstance(value, TIMES) or (isinstance(value, str) and not is_number(value))
