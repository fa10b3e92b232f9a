"""Cache results on disk by a hash of the arguments.

joblib hashes a pickle of the arguments, and torch's pickle of a tensor contains its
address in memory: equal members would have different hashes. Here tensors are hashed by
value.
"""

import types
from collections.abc import Callable

import torch
from joblib.hashing import NumpyHasher
from sklearn.utils.validation import check_memory

from sklearn_sharpbalance._version import __version__
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.persistence.encoding import byte_view
from sklearn_sharpbalance.persistence.fingerprint import closed_over, code_name

__all__ = ["cached", "kept_in_memory", "stable_hash"]


def cached(memory, function: Callable, ignore=()) -> Callable:
    """Return a function whose results are cached by a joblib.Memory.

    Parameters
    ----------
    memory : None, str, joblib.Memory or object with a method ``cached``
        None does not cache. An own method ``cached(function, ignore)`` is used.
    function : callable
        A function of a module. Call the result with keyword arguments only.
    ignore : sequence of str
        Arguments that do not change the result.
    """
    if hasattr(memory, "cached"):
        return memory.cached(function, ignore)
    try:
        memory = check_memory(memory)
        if getattr(memory, "location", "somewhere") is None:
            return function
        call = memory.cache(_call, ignore=["function", "arguments"])
    except OSError as error:
        raise InvalidInputError(
            f"memory={memory!r} cannot store results: {error}. Pass a folder that can "
            "be written to, or None to disable the cache."
        ) from error

    def cached_function(**arguments):
        relevant = [(k, v) for k, v in sorted(arguments.items()) if k not in ignore]
        key = stable_hash((__version__, function.__qualname__, relevant))
        return call(key, function, arguments)

    return cached_function


def kept_in_memory(memory, function: Callable) -> Callable:
    """Return a cached function, if the cache needs no disk; else the function.

    For results that are quick to compute again.

    Parameters
    ----------
    memory, function
        As in :func:`cached`.
    """
    return memory.cached(function) if hasattr(memory, "cached") else function


def _call(key, function, arguments):
    return function(**arguments)


def stable_hash(value) -> str:
    """Return a text that is equal for equal values in every process.

    Examples
    --------
    >>> stable_hash([torch.ones(2)]) == stable_hash([torch.ones(2)])
    True
    >>> stable_hash([torch.ones(2)]) == stable_hash([torch.zeros(2)])
    False
    """
    return _TensorHasher(hash_name="md5", coerce_mmap=True).hash(value)


class _TensorHasher(NumpyHasher):
    """joblib's hasher, extended to values of tensors and to code of functions."""

    def save(self, obj):
        """Pickle the object; replace tensors, classes and functions by plain values."""
        if isinstance(obj, torch.Tensor):
            obj = ("tensor", str(obj.dtype), tuple(obj.shape), byte_view(obj))
        elif isinstance(obj, type | types.FunctionType):
            obj = ("code", code_name(obj), closed_over(obj))
        super().save(obj)
