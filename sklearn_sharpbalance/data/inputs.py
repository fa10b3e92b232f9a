"""Validation of X and y, and the layout in which modules see X."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    column_or_1d,
    validate_data,
)
from skorch.helper import SliceDataset
from torch.utils.data import Dataset

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.arrays import dataset_labels, to_array
from sklearn_sharpbalance.data.columns import TableColumns
from sklearn_sharpbalance.data.frames import (
    as_float32,
    check_names,
    is_frame,
    read_columns,
)
from sklearn_sharpbalance.data.statistics import (
    rounded_columns,
    warn_of_columns,
    warn_of_rounding,
)
from sklearn_sharpbalance.data.text_columns import text_columns_error
from sklearn_sharpbalance.data.torch_dataset import (
    SlicedItems,
    check_countable,
    first_input,
)
from sklearn_sharpbalance.data.training_data import n_rows
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "InputFormat",
    "as_array",
    "check_X",
    "check_layout",
    "check_y",
    "encode_frame",
    "other_layout",
]

PICTURE_CHANNELS = (1, 3, 4)
MAX_NAMES = 5  # columns that a message names


@dataclass(frozen=True)
class InputFormat:
    """Layout of the samples of a fit.

    Attributes
    ----------
    kind : str
        "table", "frame", "pictures", "array", "dict" or "dataset".
    given_shape : tuple of int or None
        Shape of one sample as the user passes it.
    shape : tuple of int or None
        Shape of one sample as the module sees it; pictures have channels first,
        and columns of a DataFrame are encoded.
    dtype : str
        "uint8" for uint8 pictures, else "float32".
    keys : tuple of str or None
        Keys of a dictionary of inputs.
    shapes : tuple of tuple of int, or None
        Shape of one sample of each of these inputs.
    columns : TableColumns or None
        How a DataFrame is encoded; None before it is known, and for other inputs.
    """

    kind: str
    given_shape: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    dtype: str = "float32"
    keys: tuple[str, ...] | None = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    columns: TableColumns | None = None

    @property
    def is_uint8_pictures(self) -> bool:
        """Whether the module sees pictures (C, H, W) of uint8."""
        shape = self.shape or ()
        is_picture = len(shape) == 3 and shape[0] in PICTURE_CHANNELS
        return is_picture and self.dtype == "uint8"

    def to_module(self, X):
        """Convert a batch from the user's layout to the module's layout."""
        if self.kind == "pictures" and self.given_shape != self.shape:
            if len(self.given_shape or ()) == 2:  # grey, without a channel axis
                X = X[:, None]
            else:
                X = np.moveaxis(X, -1, 1)
        return _usual_strides(X)

    def __str__(self):
        if self.kind == "dict":
            return f"a dictionary of {', '.join(map(repr, self.keys or ()))}"
        if self.kind == "frame":
            return f"a DataFrame of {(self.given_shape or ())[0]} columns"
        return f"samples of shape {self.given_shape}"

    def in_full(self):
        """Return a longer text than ``str``, with all shapes."""
        if self.kind == "dict":
            pairs = zip(self.keys or (), self.shapes or ())
            named = ", ".join(f"{key!r} of shape {shape}" for key, shape in pairs)
            return f"a dictionary of {named}"
        return f"{self}, which the module sees as {self.shape}"


def check_X(estimator, X, *, reset, fitted=None):
    """Validate X and convert it to the layout that the module sees.

    Parameters
    ----------
    estimator : estimator instance
        Gets ``n_features_in_`` and ``feature_names_in_`` when ``reset``.
    X : array-like, DataFrame, tensor, dict of arrays, Dataset or SliceDataset
    reset : bool
        True in ``fit``; False compares X with the data of the fit, and accepts a
        Dataset without labels.
    fitted : InputFormat or None, default=None
        Layout of the fit, which decides whether arrays (N, H, W) are grey pictures.

    Returns
    -------
    X : ndarray, dict of ndarray, or Dataset
        For a DataFrame in ``fit`` the columns, which :func:`encode_frame` encodes.
    input_format : InputFormat
    """
    if isinstance(X, SliceDataset):
        X = SlicedItems(X)
    is_dict = isinstance(X, Mapping) and not issparse(X)  # dok_matrix is a Mapping
    if reset and (is_dict or isinstance(X, Dataset)):
        for name in ("n_features_in_", "feature_names_in_"):  # from an earlier fit
            vars(estimator).pop(name, None)
    if isinstance(X, Dataset):
        return _check_dataset(X, labelled=reset)
    if is_dict:
        return _check_dict(X)
    of_frame = reset or (fitted is not None and fitted.kind == "frame")
    if is_frame(X) and of_frame and all(X.shape):
        return _check_frame(estimator, X, reset=reset, fitted=fitted)
    if not is_frame(X) and fitted is not None and fitted.columns is not None:
        _check_replaces_frame(estimator, fitted.columns)
    given = X = as_array(X) if torch.is_tensor(X) else X
    has_axes = getattr(X, "ndim", 2) > 2
    is_uint8 = has_axes and getattr(X, "dtype", None) == np.uint8
    keep_uint8 = is_uint8 and (fitted is None or fitted.kind != "array")
    options = {
        "dtype": np.uint8 if keep_uint8 else np.float32,
        "order": "C",
        "allow_nd": True,
    }
    if has_axes and not reset:
        # Do not check n_features_in_: pictures may have channels first or last.
        X = check_array(X, input_name="X", estimator=estimator, **options)
    else:
        try:
            X = validate_data(estimator, X, reset=reset, **options)
        except (TypeError, ValueError) as error:
            explained = None if issparse(X) else text_columns_error(X)
            raise explained or error from error
    fmt = _array_format(X, fitted)
    if reset and fmt.kind != "pictures":
        warn_of_rounding(given, getattr(estimator, "feature_names_in_", None))
    return fmt.to_module(X), fmt


def _check_frame(estimator, X, *, reset, fitted):
    """Return the columns of a DataFrame, encoded if ``fitted`` knows how to."""
    check_names(X)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    columns = None if fitted is None else fitted.columns
    if columns is not None and not reset:
        return columns.transform(read_columns(X, ignored=columns.ignored)), fitted
    values = read_columns(X)
    if reset:
        warn_of_columns([repr(name) for name in values if _is_rounded(values[name])])
    values = {
        name: column if column.dtype == object else as_float32(name, column)
        for name, column in values.items()
    }
    return values, InputFormat("frame", (len(values),), None)


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
    named = ", ".join(map(repr, encoded[:MAX_NAMES]))
    more = ", ..." if len(encoded) > MAX_NAMES else ""
    raise InvalidInputError(
        f"{type(estimator).__name__} was fitted on a DataFrame with categories or "
        f"missing values in {named}{more}, but X is not a DataFrame. Pass a DataFrame "
        "with the same columns."
    )


def encode_frame(data, fmt, fitted=None):
    """Encode the columns of a DataFrame as the training samples have them.

    Parameters
    ----------
    data : TrainingData
        Without held-out samples, which must not decide how columns are encoded.
    fmt : InputFormat
    fitted : TableColumns or None, default=None
        Columns of an earlier fit, for a warm start; None learns them.

    Returns
    -------
    data : TrainingData
        Unchanged unless its samples are columns of a DataFrame.
    fmt : InputFormat
    """
    if fmt.kind != "frame" or fmt.columns is not None:
        return data, fmt
    columns = fitted
    if columns is None:
        columns = TableColumns.fit(data.X)
        warning = columns.warning()
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
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
    return replace(data, X=columns.transform(data.X), valid=valid), fmt


def check_layout(estimator, fmt, fitted):
    """Raise unless samples have the layout of the fit."""
    if fmt.shape != fitted.shape or fmt.keys != fitted.keys:
        raise other_layout(estimator, fmt, fitted)


def other_layout(estimator, fmt, fitted):
    """Return the error for samples of another layout than those of the fit."""
    found, known = str(fmt), str(fitted)
    if found == known:
        found, known = fmt.in_full(), fitted.in_full()
    name = type(estimator).__name__
    return InvalidInputError(f"X is {found}, but {name} was fitted on {known}.")


def _usual_strides(X):
    """Return the array in C order, with the strides of a new array.

    numpy leaves the strides of axes of length one undefined, but torch uses them to
    recognise channels-last tensors.
    """
    return np.ascontiguousarray(X).reshape(-1).reshape(X.shape)


def _array_format(X, fitted=None):
    shape = X.shape[1:]
    if len(shape) == 1:
        return InputFormat("table", shape, shape)
    dtype = str(X.dtype)
    as_fitted = fitted is not None and fitted.shape == (1, *shape)
    if len(shape) == 2 and (X.dtype == np.uint8 or as_fitted):
        return InputFormat("pictures", shape, (1, *shape), dtype=dtype)
    if len(shape) == 3 and shape[0] in PICTURE_CHANNELS:
        return InputFormat("pictures", shape, shape, dtype=dtype)
    if len(shape) == 3 and shape[-1] in PICTURE_CHANNELS:
        channels_first = (shape[-1], *shape[:-1])
        return InputFormat("pictures", shape, channels_first, dtype=dtype)
    if X.dtype == np.uint8:
        raise InvalidInputError(
            f"Pictures must be (N, H, W, C) or (N, C, H, W) with C in "
            f"{PICTURE_CHANNELS}, or (N, H, W); got uint8 of shape {X.shape}."
        )
    return InputFormat("array", shape, shape)


def _check_dataset(dataset, labelled):
    x = first_input(dataset, labelled)
    dtype = "uint8" if x.dtype in (torch.uint8, np.uint8) else "float32"
    shape = tuple(x.shape)
    return dataset, InputFormat("dataset", shape, shape, dtype=dtype)


def _check_dict(X):
    if not X:
        raise InvalidInputError("X is an empty dictionary. Pass one array per input.")
    arrays = {}
    for key, value in X.items():
        value = as_array(value) if torch.is_tensor(value) else value
        array = check_array(
            value, order="C", allow_nd=True, ensure_2d=False, input_name=key
        )
        floating = np.issubdtype(array.dtype, np.floating)
        arrays[key] = array.astype(np.float32 if floating else array.dtype, copy=False)
    check_consistent_length(*arrays.values())
    keys = tuple(sorted(arrays))
    shapes = tuple(arrays[key].shape[1:] for key in keys)
    return arrays, InputFormat("dict", None, None, keys=keys, shapes=shapes)


def check_y(X, y, classes=None):
    """Return the classes, and the labels as class codes.

    Parameters
    ----------
    X : ndarray, dict or Dataset
        Validated samples.
    y : array-like of shape (N,) or None
    classes : array-like of shape (C,) or None
        All classes; None takes those in ``y``.

    Returns
    -------
    classes : ndarray of shape (C,)
    codes : ndarray of shape (N,), dtype int64
    """
    if isinstance(X, Dataset):
        check_countable(X)
        if y is None and not isinstance(X, SlicedItems):
            y = dataset_labels(X)
    if y is None:
        raise InvalidInputError(
            "requires y to be passed, but the target y is None. Pass the labels."
        )
    y = _as_labels(y)
    n_samples = n_rows(X)
    if len(y) != n_samples:
        raise InvalidInputError(
            "Found input variables with inconsistent numbers of samples: X has "
            f"{n_samples}, y has {len(y)}."
        )
    _check_missing(y)
    try:
        check_classification_targets(y)
        found, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        types = sorted({type(label).__name__ for label in y})
        if len(types) > 1:
            raise InvalidInputError(
                f"y contains labels of several types, which have no common order: "
                f"{', '.join(types)}. Use one type."
            ) from error
        raise InvalidInputError(
            f"y contains labels of type {types[0]}, {y.dtype}, which cannot be sorted: "
            f"{error} Use strings or integers, such as y.astype(str)."
        ) from error
    classes = found if classes is None else np.unique(classes)
    unknown = np.setdiff1d(found, classes)
    if len(unknown):
        raise InvalidInputError(
            f"y contains labels {unknown[:5].tolist()} that are not among the classes "
            f"{classes[:10].tolist()}. Pass all classes in the first call."
        )
    codes = np.searchsorted(classes, found)[codes]
    if len(classes) < 2:
        raise InvalidInputError(
            f"A classifier needs samples of at least 2 classes, but y contains one "
            f"class: {classes[0]!r}."
        )
    return classes, codes.astype(np.int64)


def _as_labels(y):
    """Return y as an array of shape (N,); raise on several labels per sample."""
    y = as_array(y) if torch.is_tensor(y) else y
    try:
        return column_or_1d(y, warn=True)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"y must contain one label per sample: {in_a_sentence(error)}. For several "
            "labels per sample fit one ensemble for each of them, by "
            "sklearn.multioutput.MultiOutputClassifier(ensemble). For one-hot rows "
            "pass y.argmax(axis=1)."
        ) from error


def _check_missing(y):
    """Raise if labels are missing: None, NaN, or NA of pandas."""
    if y.dtype.kind == "f":
        missing = ~np.isfinite(y)
        text = "Input y contains NaN or infinity"
    elif y.dtype == object:
        missing = np.array([_is_missing(label) for label in y], dtype=bool)
        text = "Labels are missing"
    else:
        return
    if missing.any():
        raise InvalidInputError(
            f"{text}: y has no label for {missing.sum()} of {len(y)} samples, first in "
            f"row {missing.argmax()}. Remove these samples from X and y."
        )


def _is_missing(label):
    # By name: NA of pandas equals nothing, and pandas need not be installed.
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, float | np.floating) and not np.isfinite(label)


def as_array(values):
    """Convert a tensor to an array; float dtypes that numpy lacks become float32."""
    numpy_floats = (torch.float16, torch.float32, torch.float64)
    if torch.is_tensor(values) and values.is_floating_point():
        values = values if values.dtype in numpy_floats else values.float()
    return to_array(values)
