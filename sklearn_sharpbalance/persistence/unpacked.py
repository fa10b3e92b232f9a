"""What a file takes in memory, known before any of it is taken.

A few bytes of JSON can become many of Python: ``[],`` is a list of 64 bytes. Writer and
reader reckon with the same upper bounds. The writer makes a file as long as its content
needs; the reader refuses one that would take more than twice its size and a constant.
"""

from math import prod
from typing import Any

import numpy as np

__all__ = ["ROOM", "bytes_to_decode", "bytes_to_parse"]

ROOM = 2**20  # for what the interpreter needs beside the content of any file
BASIS = 2**16  # frames, buffers and messages, part of the room

# Upper bounds for CPython, where a dictionary that grows holds its old table too.
BRACE, BRACKET, COLON, COMMA, QUOTE = 80, 100, 150, 48, 32
WIDE = 7  # bytes for a character of text with a letter beyond Latin, while it is read
ROW, CELL = 184, 112  # of a dictionary; a number and its place
ARRAY, ENTRY, NUMBER = 1000, 400, 40
RANDOM_STATE = 20_000


def bytes_to_parse(header: bytes) -> int:
    """Bound on the memory that JSON of this header takes, the header itself included.

    Examples
    --------
    >>> bytes_to_parse(b"[" + b"[]," * 1000 + b"[]]") > 1000 * 64
    True
    """
    marks = (b"{", BRACE), (b"[", BRACKET), (b":", COLON), (b",", COMMA), (b'"', QUOTE)
    objects = sum(weight * header.count(mark) for mark, weight in marks)
    text = len(header) * (WIDE if b"\\u" in header else 1)
    # The header, the tree as text inside it, and the strings of the tree.
    return BASIS + len(header) + 2 * text + objects


def bytes_to_decode(tree: Any, shapes: dict[str, list[int]]) -> int:
    """Bound on the memory of the values that parsed JSON stands for.

    Parameters
    ----------
    tree : object
        What :func:`~sklearn_sharpbalance.persistence.encoding.encode` gives.
    shapes : dict
        Of the arrays, by name.

    Examples
    --------
    >>> bytes_to_decode({"$scalars": {"$array": "x"}}, {"x": [10**6]}) > 10**7
    True
    """
    return ENTRY * len(shapes) + _Bounds(shapes)(tree)


class _Bounds:
    def __init__(self, shapes):
        self.shapes = shapes

    def __call__(self, value):
        if isinstance(value, list):
            return BRACKET + 9 * len(value) + sum(map(self, value))
        if not isinstance(value, dict):
            return 0
        tag = _tag(value)
        if tag is None:
            return BRACE + COLON * len(value) + sum(map(self, value.values()))
        return self.TAGS.get(tag, _Bounds._other)(self, value[tag], value)

    def _other(self, value, _):
        return ARRAY + self(value)

    def _tuple(self, value, _):
        return 2 * (BRACKET + 9 * len(value)) + self(value)

    def _dict(self, value, _):
        return BRACE + COLON * len(value) + self(value)

    def _records(self, value, _):
        columns = [self._shape(column) for _, column in value]
        cells = sum(prod(shape) + 2 * prod(shape[:-1]) for shape in columns)
        rows = max((shape[0] for shape in columns), default=0)
        inside = sum(self(column) for _, column in value)
        size = ROW * rows + CELL * (rows * len(columns) + cells)
        return BRACE + COLON * len(columns) + inside + size

    def _scalars(self, value, _):
        shape = self._shape(value)
        return BRACKET + CELL * shape[0] + NUMBER * prod(shape) + self(value)

    def _text(self, value, whole):
        dtype = np.dtype(whole["dtype"])
        return ARRAY + len(value) * max(1, dtype.itemsize)

    def _objects(self, value, _):
        return ARRAY + 8 * len(value) + self(value)

    def _random_state(self, value, _):
        return RANDOM_STATE + self(value)

    def _shape(self, column):
        """Shape of a column: a list, or an array in one of its forms."""
        while isinstance(column, dict) and (tag := _tag(column)) is not None:
            column = column[tag]
        if isinstance(column, str):
            return self.shapes[column] or [1]
        return [len(column)]

    TAGS = {
        "$float": lambda self, value, _: NUMBER,
        "$tuple": _tuple,
        "$dict": _dict,
        "$records": _records,
        "$scalars": _scalars,
        "$text": _text,
        "$objects": _objects,
        "$random_state": _random_state,
    }


def _tag(value):
    return next((key for key in value if key.startswith("$")), None)
