"""Python values as JSON and raw bytes, and back, bit for bit.

Numbers, strings, lists and dictionaries become JSON; JSON's floats are exact, since
Python writes the shortest text that reads back as the same number. Everything else
that is plain is tagged by a key that starts with ``$``; arrays and tensors lie beside
the JSON as raw bytes. Any other object is refused by name: nothing is pickled.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

__all__ = ["DTYPE_SIZES", "Entry", "NotPlainError", "decode", "encode"]

CELL_BYTES = 64  # a number in a record, and its share of the dictionary
_TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
_TORCH_NAMES = {dtype: name for name, dtype in _TORCH.items()}
_NUMPY_NAMES = {np.dtype(dtype): name for name, dtype in _NUMPY.items()}
DTYPE_SIZES = {name: dtype.itemsize for name, dtype in _TORCH.items()}


class NotPlainError(TypeError):
    """A value that is neither plain nor an array.

    Attributes
    ----------
    where : str
        Path to the value, with dots.
    value : object
    """

    def __init__(self, where, value):
        super().__init__(f"{where or 'the value'} is a {type(value).__qualname__}")
        self.where, self.value = where, value


@dataclass
class Entry:
    """Raw bytes of one array."""

    dtype: str
    shape: list[int]
    data: Any


def encode(value: Any, entries: dict[str, Entry], where: str = "") -> Any:
    """JSON for a value; arrays and tensors go to ``entries``.

    Parameters
    ----------
    value : object
    entries : dict
        Filled with the raw arrays, by the path at which they stand.
    where : str, default=""
        Path of the value.

    Raises
    ------
    NotPlainError
        If some part of the value is an object that JSON and arrays cannot hold.

    Examples
    --------
    >>> encode({"rho": 0.1, "hidden": (8, 8)}, {})
    {'rho': 0.1, 'hidden': {'$tuple': [8, 8]}}
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if type(value) is list:
        return _encode_list(value, entries, where)
    if type(value) is tuple:
        return {"$tuple": _encode_items(value, entries, where)}
    if isinstance(value, dict):
        return _encode_dict(value, entries, where)
    if isinstance(value, np.generic):
        return {"$scalar": encode(np.asarray(value), entries, where)}
    if isinstance(value, np.ndarray):
        return _encode_array(value, entries, where)
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, entries, where)
    raise NotPlainError(where, value)


def _encode_items(values, entries, where):
    return [encode(item, entries, f"{where}.{i}") for i, item in enumerate(values)]


def _encode_list(values, entries, where):
    """Long lists of records with the same names go column by column."""
    first = values[0] if values else None
    named = isinstance(first, dict) and all(type(key) is str for key in first)
    if not named or len(values) < 2 or not first or not _same_names(values):
        return _encode_items(values, entries, where)
    columns = [[row[name] for row in values] for name in first]
    return {
        "$records": [
            [name, _encode_column(column, entries, f"{where}.{name}")]
            for name, column in zip(first, columns)
        ]
    }


def _same_names(rows):
    return all(type(row) is dict for row in rows) and all(
        list(a) == list(b) for a, b in pairwise(rows)
    )


def _encode_column(values, entries, where):
    if all(type(value) is float for value in values):
        return encode(np.asarray(values, dtype=np.float64), entries, where)
    if all(type(value) is int and abs(value) < 2**62 for value in values):
        return encode(np.asarray(values, dtype=np.int64), entries, where)
    first = values[0]
    if isinstance(first, np.number) and all(type(v) is type(first) for v in values):
        return {"$scalars": encode(np.asarray(values), entries, where)}
    return _encode_items(values, entries, where)


def _encode_dict(value, entries, where):
    prefix = f"{where}." if where else ""
    items = {key: encode(v, entries, f"{prefix}{key}") for key, v in value.items()}
    if all(type(key) is str and not key.startswith("$") for key in items):
        return items
    return {"$dict": [[encode(key, entries, where), v] for key, v in items.items()]}


def _encode_array(array, entries, where):
    if array.dtype.kind == "U":
        flat = array.reshape(-1).tolist()
        return {"$text": flat, "dtype": array.dtype.str, "shape": list(array.shape)}
    if array.dtype.kind == "O":
        return {"$objects": encode(array.tolist(), entries, where)}
    if array.dtype.kind in "mM":
        numbers = encode(np.ascontiguousarray(array).view(np.int64), entries, where)
        return {"$time": numbers, "dtype": array.dtype.str}
    name = _NUMPY_NAMES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise NotPlainError(where, array)
    array = np.asarray(array, dtype=_NUMPY[name], order="C")
    data = array.reshape(-1).view(np.uint8).data
    return {"$array": _add(entries, where, Entry(name, list(array.shape), data))}


def _encode_tensor(tensor, entries, where):
    name = _TORCH_NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotPlainError(where, tensor)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    return {"$tensor": _add(entries, where, Entry(name, list(tensor.shape), data))}


def _add(entries, where, entry):
    name = where or "value"
    while name in entries or name == "__metadata__":  # keys may hold dots themselves
        name += "'"
    entries[name] = entry
    return name


def decode(value: Any, entries: dict[str, Entry], budget: int = 2**62) -> Any:
    """The value that :func:`encode` was given.

    Parameters
    ----------
    value : object
        JSON.
    entries : dict
        Raw arrays.
    budget : int, default=2**62
        Bytes of Python objects that records may become.

    Raises
    ------
    Exception
        ValueError, TypeError or KeyError if the JSON is not what :func:`encode` returns.
    """
    return _Decoder(entries, budget)(value)


class _Decoder:
    def __init__(self, entries, budget):
        self.entries, self.budget = entries, budget

    def __call__(self, value):
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, dict):
            return value
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None:
            return {key: self(item) for key, item in value.items()}
        if tag not in self.TAGS:
            raise ValueError(f"it holds an unknown tag {tag!r}.")
        return self.TAGS[tag](self, value[tag], value)

    def _records(self, value, _):
        columns = {name: self(column) for name, column in value}
        lengths = {len(column) for column in columns.values()}
        self.budget -= CELL_BYTES * sum(len(column) for column in columns.values())
        if len(lengths) != 1 or self.budget < 0:
            raise ValueError("its records have columns of different or absurd length.")
        lists = [
            c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()
        ]
        return [dict(zip(columns, row)) for row in zip(*lists)]

    def _array(self, name, _):
        entry = self.entries[name]
        dtype = np.dtype(_NUMPY[entry.dtype])
        return np.frombuffer(entry.data, dtype=dtype).reshape(entry.shape)

    def _tensor(self, name, _):
        entry = self.entries[name]
        dtype = _TORCH[entry.dtype]
        if not len(entry.data):
            return torch.empty(entry.shape, dtype=dtype)
        return torch.frombuffer(entry.data, dtype=dtype).reshape(entry.shape)

    def _objects(self, value, _):
        items = self(value)
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array

    def _text(self, value, whole):
        dtype = np.dtype(whole["dtype"])
        self.budget -= len(value) * dtype.itemsize
        if dtype.kind != "U" or self.budget < 0:
            raise ValueError("it holds text of an absurd width.")
        return np.asarray(value, dtype=dtype).reshape(whole["shape"])

    def _time(self, value, whole):
        dtype = np.dtype(whole["dtype"])
        if dtype.kind not in "mM":
            raise ValueError("it holds times of an unknown kind.")
        return self(value).view(dtype)

    def _scalar(self, value, _):
        return self(value)[()]

    TAGS = {
        "$float": lambda self, value, _: _special_float(value),
        "$tuple": lambda self, value, _: tuple(self(value)),
        "$dict": lambda self, value, _: {self(k): self(v) for k, v in value},
        "$records": _records,
        "$scalar": _scalar,
        "$scalars": lambda self, value, _: list(self(value)),
        "$array": _array,
        "$tensor": _tensor,
        "$text": _text,
        "$objects": _objects,
        "$time": _time,
    }


def _special_float(value):
    if value not in ("nan", "inf", "-inf"):
        raise ValueError(f"it holds {value!r} in place of a number.")
    return float(value)
