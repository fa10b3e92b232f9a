"""Results that the fits of a search share, in the memory of this process."""

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.utils.data import Dataset

from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.members.net import with_callbacks
from sklearn_sharpbalance.persistence.fingerprint import by_file, stable_hash


class ResultStore:
    """Keeps trained segments and scores: the ``memory`` of all ensembles of a search.

    The search trains their segments together and keeps them here; ``fit`` finds them.
    """

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}
        self._data: dict[str, TrainingData] = {}
        self._hashes: dict[int, tuple[Callable[[], Any], str]] = {}

    def __sklearn_clone__(self):
        """Return itself, for the clones of an ensemble."""
        return self

    def __getstate__(self):
        """Return an empty store: a process has its own."""
        return vars(ResultStore())

    def __repr__(self):
        return "ResultStore()"

    def cached(self, function: Callable, ignore=()) -> Callable:
        """Return a function whose results are kept; call it with keywords only.

        What only one fit needs is not kept: the result of a last segment. Results of a
        Dataset, whose items may be random, and of nets with callbacks, which must be
        called, are not kept either. Arguments in ``ignore`` do not change the result.
        """

        def cached_function(**arguments):
            if why_not_shared(arguments.get("net"), arguments["data"]):
                return function(**arguments)
            key = self.key(function, arguments, ignore)
            if key not in self._results:
                result = function(**arguments)
                segment = arguments.get("segment")
                if segment is not None and segment.last:
                    return result
                self.keep(key, result)
            result = self._results[key]
            if isinstance(result, Exception):
                raise result.with_traceback(None)
            return result

        return cached_function

    def key(self, function: Callable, arguments: dict[str, Any], ignore=()) -> str:
        """Return a text that is equal for calls with equal results."""
        relevant = [
            (name, self._hash(value))
            for name, value in sorted(arguments.items())
            if name not in ignore
        ]
        return stable_hash((function.__qualname__, relevant))

    def has(self, key: str) -> bool:
        """Whether there is a result for a key."""
        return key in self._results

    def keep(self, key: str, result: Any) -> None:
        """Keep a result; an exception is raised where the result is asked for."""
        self._results[key] = result
        members = _members_of(result)
        if members is not None:  # a list, which has no weak references
            self._hashes[id(members)] = (lambda: members, f"members of {key}")

    def one_of_equal(self, data: TrainingData) -> TrainingData:
        """Return the first data that was equal, so that fits hold it once."""
        if isinstance(data.X, Dataset):
            return data
        return self._data.setdefault(self._hash(data), data)

    def _hash(self, value):
        """Return a hash; it is computed once for an object that does not change."""
        known = self._hashes.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        found = stable_hash(by_file(value))
        with suppress(TypeError):  # numbers, strings, tuples, lists
            self._hashes[id(value)] = (weakref.ref(value), found)
        return found


def why_not_shared(net, data) -> str:
    """Return why results of a net and its data are not shared; empty if they are."""
    if isinstance(data.X, Dataset):
        return "X is a Dataset"
    if net is not None and with_callbacks(net).callbacks_:
        return "it has callbacks, which are called for its members only"
    return ""


def _members_of(result):
    """Return the list of members in a result; None if it has none."""
    if isinstance(result, tuple):  # of train_members
        return result[0]
    return result if isinstance(result, list) else None
