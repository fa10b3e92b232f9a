"""Python values as JSON and raw bytes, and back, bit for bit.

Numbers, strings, lists and dictionaries become JSON; JSON's floats are exact, since
Python writes the shortest text that reads back as the same number. Everything else
that is plain is tagged by a key that starts with ``$``; arrays and tensors lie beside
the JSON as raw bytes. Any other object is refused by name: nothing is pickled.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Entry", "NotPlainError", "check_table", "decode", "encode"]

_SCALARS = (type(None), bool, int, float, str, np.generic)
_DTYPES = [
    ("BOOL", torch.bool, "?"),
    ("U8", torch.uint8, "u1"),
    ("I8", torch.int8, "i1"),
    ("U16", torch.uint16, "<u2"),
    ("I16", torch.int16, "<i2"),
    ("U32", torch.uint32, "<u4"),
    ("I32", torch.int32, "<i4"),
    ("U64", torch.uint64, "<u8"),
    ("I64", torch.int64, "<i8"),
    ("F16", torch.float16, "<f2"),
    ("BF16", torch.bfloat16, None),
    ("F32", torch.float32, "<f4"),
    ("F64", torch.float64, "<f8"),
    ("C64", torch.complex64, "<c8"),
    ("F8_E4M3", torch.float8_e4m3fn, None),
    ("F8_E5M2", torch.float8_e5m2, None),
]
_TORCH = {name: dtype for name, dtype, _ in _DTYPES}
_NUMPY = {name: dtype for name, _, dtype in _DTYPES if dtype is not None}
_TORCH_NAMES = {dtype: name for name, dtype in _TORCH.items()}
_NUMPY_NAMES = {np.dtype(dtype): name for name, dtype in _NUMPY.items()}
_DTYPE_SIZES = {name: dtype.itemsize for name, dtype in _TORCH.items()}


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


def encode(value: Any, entries: dict[str, Entry], special=None) -> Any:
    """JSON for a value; arrays and tensors go to ``entries``.

    Parameters
    ----------
    value : object
    entries : dict
        Filled with the raw arrays, by the path at which they stand.
    special : callable, default=None
        Gives (tag, plain value) for an object that is neither plain nor an array, or
        None if it knows no such thing.

    Raises
    ------
    NotPlainError
        If some part of the value is an object that JSON and arrays cannot hold.

    Examples
    --------
    >>> encode({"rho": 0.1, "hidden": (8, 8)}, {})
    {'rho': 0.1, 'hidden': {'$tuple': [8, 8]}}
    """
    return _Encoder(entries, special)(value, "")


class _Encoder:
    def __init__(self, entries, special):
        self.entries, self.special = entries, special

    def __call__(self, value, where):
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if type(value) is list:
            return self._list(value, where)
        if type(value) is tuple:
            return {"$tuple": self._items(value, where)}
        if isinstance(value, dict):
            return self._dict(value, where)
        if isinstance(value, np.generic):
            return {"$scalar": self._array(np.asarray(value), where)}
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        found = None if self.special is None else self.special(value)
        if found is None:
            raise NotPlainError(where, value)
        return {found[0]: self(found[1], where)}

    def _items(self, values, where):
        return [self(item, f"{where}.{i}") for i, item in enumerate(values)]

    def _list(self, values, where):
        """Lists of records with the same names go column by column."""
        if len(values) < 2 or not _are_records(values):
            return self._items(values, where)
        names = list(values[0])
        columns = [[row[name] for row in values] for name in names]
        return {
            "$records": [
                [name, self._column(column, f"{where}.{name}")]
                for name, column in zip(names, columns)
            ]
        }

    def _column(self, values, where):
        if all(type(value) is float for value in values):
            return self._array(np.asarray(values, dtype=np.float64), where)
        if all(type(value) is int and abs(value) < 2**62 for value in values):
            return self._array(np.asarray(values, dtype=np.int64), where)
        first = values[0]
        if isinstance(first, np.number) and all(type(v) is type(first) for v in values):
            return {"$scalars": self._array(np.asarray(values), where)}
        return self._items(values, where)

    def _dict(self, value, where):
        prefix = f"{where}." if where else ""
        items = {key: self(item, f"{prefix}{key}") for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        return {"$dict": [[self(key, where), item] for key, item in items.items()]}

    def _array(self, array, where):
        if array.dtype.kind == "U":
            flat = array.reshape(-1).tolist()
            return {"$text": flat, "dtype": array.dtype.str, "shape": list(array.shape)}
        if array.dtype.kind == "O":
            return {"$objects": self(array.tolist(), where)}
        if array.dtype.kind in "mM":
            numbers = np.asarray(array, order="C").view(np.int64)
            return {"$time": self._array(numbers, where), "dtype": array.dtype.str}
        name = _NUMPY_NAMES.get(array.dtype.newbyteorder("<"))
        if name is None:
            raise NotPlainError(where, array)
        array = np.asarray(array, dtype=_NUMPY[name], order="C")
        data = array.reshape(-1).view(np.uint8).data
        return {"$array": self._add(where, Entry(name, list(array.shape), data))}

    def _tensor(self, tensor, where):
        name = _TORCH_NAMES.get(tensor.dtype)
        if name is None or tensor.layout is not torch.strided or tensor.is_quantized:
            raise NotPlainError(where, tensor)
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        return {"$tensor": self._add(where, Entry(name, list(tensor.shape), data))}

    def _add(self, where, entry):
        name = where or "value"
        while name in self.entries or name == "__metadata__":  # keys may hold dots
            name += "'"
        self.entries[name] = entry
        return name


def _are_records(rows):
    """Whether all rows are dictionaries of scalars by the same names in one order."""
    if not all(type(row) is dict and row for row in rows):
        return False
    names = list(rows[0])
    return all(type(name) is str for name in names) and all(
        list(row) == names and all(isinstance(v, _SCALARS) for v in row.values())
        for row in rows
    )


def check_table(table: Mapping[str, Any], n_bytes: int) -> None:
    """Raise unless tensors follow each other without gaps, in the size of their shape.

    Parameters
    ----------
    table : dict
        Header of a safetensors file, without its metadata.
    n_bytes : int
        Size of all tensors in the file.
    """
    end = 0
    for name, row in table.items():
        start, stop = row["data_offsets"]
        shape = row["shape"]
        if not all(type(v) is int and 0 <= v < 2**62 for v in (start, stop, *shape)):
            raise ValueError(f"tensor {name!r} has no proper shape.")
        if (
            start != end
            or stop - start != math.prod(shape) * _DTYPE_SIZES[row["dtype"]]
        ):
            raise ValueError(f"tensor {name!r} does not lie where it should.")
        end = stop
    if end != n_bytes:
        raise ValueError(f"it has {n_bytes} bytes of tensors and speaks of {end}.")


def decode(value: Any, entries: dict[str, Entry], special=None) -> Any:
    """The value that :func:`encode` was given.

    Parameters
    ----------
    value : object
        JSON.
    entries : dict
        Raw arrays.
    special : dict of str to callable, default=None
        For each tag of its own what makes an object of a plain value.

    Raises
    ------
    Exception
        ValueError, TypeError or KeyError, if the JSON is not what :func:`encode` gives.
    """
    return _Decoder(entries, special or {})(value)


class _Decoder:
    def __init__(self, entries, special):
        self.entries, self.special = entries, special

    def __call__(self, value):
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, dict):
            return value
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None:
            return {key: self(item) for key, item in value.items()}
        if tag in self.special:
            return self.special[tag](self(value[tag]))
        if tag not in self.TAGS:
            raise ValueError(f"it holds an unknown tag {tag!r}.")
        return self.TAGS[tag](self, value[tag], value)

    def _records(self, value, _):
        columns = {name: self(column) for name, column in value}
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("its records have columns of different length.")
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
        if dtype.kind != "U":
            raise ValueError("it holds text of an unknown kind.")
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
