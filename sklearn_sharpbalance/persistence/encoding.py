"""Encode Python values as JSON and tensors, and decode them exactly.

Numbers, strings, lists and dictionaries become JSON. JSON floats are exact, because
Python writes the shortest text that reads back as the same number. Other plain values
are tagged by a key that starts with ``$``. Arrays and tensors are collected beside the
JSON, which refers to each of them once by name. Any other object raises an error:
nothing is pickled.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What a safetensors file can store, and numpy's name for it.
_DTYPES = {
    torch.bool: "?",
    torch.uint8: "u1",
    torch.int8: "i1",
    torch.uint16: "<u2",
    torch.int16: "<i2",
    torch.uint32: "<u4",
    torch.int32: "<i4",
    torch.uint64: "<u8",
    torch.int64: "<i8",
    torch.float16: "<f2",
    torch.bfloat16: None,
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.complex64: "<c8",
    torch.float8_e4m3fn: None,
    torch.float8_e5m2: None,
}
_NUMPY_DTYPES = {np.dtype(name) for name in _DTYPES.values() if name is not None}
_LAST_CODE_POINT = 0x10FFFF  # of Unicode
MAX_DEPTH = 64  # of containers inside each other
# Keys are text or numbers up to here: of others, a short list may have one hash, and
# would take hours to become a dictionary.
_LAST_KEY = 2**53


class NotPlainError(TypeError):
    """The value at ``where``, a path with dots, is neither plain nor an array."""

    def __init__(self, where, value):
        super().__init__(f"{where or 'the value'} is a {type(value).__qualname__}")
        self.where, self.value = where, value


def byte_view(value: np.ndarray | Tensor) -> np.ndarray:
    """Return the values of an array or tensor as bytes, without a copy if possible."""
    if isinstance(value, Tensor):
        flat = _contiguous(value).reshape(-1)
        return flat.view(torch.uint8).numpy()
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _contiguous(tensor):
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def encode(value: Any, tensors: dict[str, Tensor], special=None) -> Any:
    """Return JSON for a value; raise NotPlainError if a part cannot be stored.

    Arrays and tensors are added to ``tensors`` by the path to them; no two of them
    share memory. For any other object, ``special`` returns (tag, plain value) or None.

    Examples
    --------
    >>> encode({"rho": 0.1, "hidden": (8, 8)}, {})
    {'rho': 0.1, 'hidden': {'$tuple': [8, 8]}}
    """
    return _Encoder(tensors, special)(value, "")


class _Encoder:
    def __init__(self, tensors, special):
        self.tensors, self.special = tensors, special
        self.storages: set[int] = set()  # addresses of those in ``tensors``
        self.depth = 0

    def __call__(self, value, where):
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if self.depth >= MAX_DEPTH:
            raise NotPlainError(where, value)
        self.depth += 1
        encoded = self._container(value, where)
        self.depth -= 1
        return encoded

    def _container(self, value, where):
        if type(value) is list:
            return self._items(value, where)
        if type(value) is tuple:
            return {"$tuple": self._items(value, where)}
        if isinstance(value, dict):
            return self._dict(value, where)
        if isinstance(value, np.generic):
            return self._scalar(value, where)
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, Tensor):
            return {"$tensor": self._add(value, where)}
        found = None if self.special is None else self.special(value)
        if found is None:
            raise NotPlainError(where, value)
        tag, plain = found
        return {tag: self(plain, where)}

    def _items(self, values, where):
        return [self(item, f"{where}.{i}") for i, item in enumerate(values)]

    def _dict(self, value, where):
        if not all(map(_is_key, value)):
            raise NotPlainError(where, value)
        prefix = f"{where}." if where else ""
        items = {key: self(item, f"{prefix}{key}") for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        return {"$dict": [[self(key, where), item] for key, item in items.items()]}

    def _scalar(self, value, where):
        if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            return {"$number": self(value.item(), where), "dtype": value.dtype.str}
        return {"$scalar": self._array(np.asarray(value), where)}

    def _array(self, array, where):
        if array.dtype.kind == "O":
            return {"$objects": self(array.tolist(), where)}
        array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        if array.dtype.kind == "U":  # as code points
            codes = array[..., None].view("<u4")
            return {"$text": self._add(torch.from_numpy(codes.copy()), where)}
        if array.dtype.kind in "mM":
            numbers = self._array(array.view(np.int64), where)
            return {"$time": numbers, "dtype": array.dtype.str}
        if array.dtype not in _NUMPY_DTYPES:
            raise NotPlainError(where, array)
        if not array.flags.writeable:
            array = array.copy()  # torch warns of tensors over read-only memory
        return {"$array": self._add(torch.from_numpy(array), where)}

    def _add(self, tensor, where):
        is_strided = tensor.layout is torch.strided and not tensor.is_quantized
        if tensor.dtype not in _DTYPES or not is_strided:
            raise NotPlainError(where, tensor)
        tensor = _contiguous(tensor)
        if tensor.untyped_storage().data_ptr() in self.storages:
            tensor = tensor.clone()  # safetensors refuses shared memory
        self.storages.add(tensor.untyped_storage().data_ptr())
        name = where or "value"
        while name in self.tensors or name == "__metadata__":  # keys may contain dots
            name += "'"
        self.tensors[name] = tensor
        return name


def decode(value: Any, tensors: dict[str, Tensor], special=None) -> Any:
    """Return the value that :func:`encode` was given; raise any error for other JSON.

    Each tensor is removed when the JSON refers to it, so that a short text cannot refer
    to a large tensor many times. ``special`` has a function for each tag, which makes
    an object of a plain value.
    """
    return _Decoder(tensors, special or {})(value)


class _Decoder:
    def __init__(self, tensors, special):
        self.tensors, self.special = tensors, special
        self.depth = 0

    def __call__(self, value):
        if not isinstance(value, list | dict):
            return value
        if self.depth >= 2 * MAX_DEPTH:  # a tag is a container as well
            raise ValueError(f"it nests more than {MAX_DEPTH} lists.")
        self.depth += 1
        decoded = self._container(value)
        self.depth -= 1
        return decoded

    def _container(self, value):
        if isinstance(value, list):
            return [self(item) for item in value]
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None:
            return {key: self(item) for key, item in value.items()}
        if tag in self.special:
            return self.special[tag](self(value[tag]))
        if tag not in self.TAGS:
            raise ValueError(f"it has an unknown tag {tag!r}.")
        return self.TAGS[tag](self, value[tag], value.get("dtype"))

    def _float(self, value, _):
        if value not in ("nan", "inf", "-inf"):
            raise ValueError(f"it has {value!r} in place of a number.")
        return float(value)

    def _tuple(self, value, _):
        return tuple(self(value))

    def _dict(self, value, _):
        keys = [self(key) for key, _ in value]
        if not all(map(_is_key, keys)):
            raise ValueError("it has a key that is neither text nor a small number.")
        return {key: self(item) for key, (_, item) in zip(keys, value)}

    def _number(self, value, dtype):
        return _checked_dtype(dtype, "biuf").type(self(value))

    def _scalar(self, value, _):
        return self(value)[()]

    def _tensor(self, name, _):
        return self.tensors.pop(name)

    def _array(self, name, _):
        return self.tensors.pop(name).numpy()

    def _objects(self, value, _):
        items = self(value)
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array

    def _text(self, name, _):
        codes = self.tensors.pop(name).numpy()
        if codes.dtype != np.uint32 or (codes > _LAST_CODE_POINT).any():
            raise ValueError("it has text that is not Unicode.")
        return codes.view(f"<U{codes.shape[-1]}")[..., 0]

    def _time(self, value, dtype):
        return self(value).view(_checked_dtype(dtype, "mM"))

    TAGS: dict[str, Callable] = {
        "$float": _float,
        "$tuple": _tuple,
        "$dict": _dict,
        "$number": _number,
        "$scalar": _scalar,
        "$tensor": _tensor,
        "$array": _array,
        "$objects": _objects,
        "$text": _text,
        "$time": _time,
    }


def _is_key(value):
    is_number = isinstance(value, bool | int | float | np.number | np.bool_)
    small = not is_number or value != value or abs(value) <= _LAST_KEY
    return small and (is_number or value is None or isinstance(value, str))


def _checked_dtype(name, kinds):
    dtype = np.dtype(name)
    if dtype.kind not in kinds:
        raise ValueError(f"it has values of the unexpected type {name!r}.")
    return dtype
