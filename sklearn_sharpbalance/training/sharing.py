"""What the fits of a search share in the memory of this process.

A search prepares its fits first, then trains them together, and then lets scikit-learn
evaluate its candidates. While sharing is active, ``fit`` of an ensemble is recorded
instead of run (:attr:`SharedTraining.collecting`), or takes the result that the search
has trained for it. A fit that is not found is run as usual.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from torch.utils.data import Dataset

from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.data.training_data import Kept
from sklearn_sharpbalance.persistence.code_identity import CodeNames, keep_code_names
from sklearn_sharpbalance.persistence.fingerprint import data_fingerprint, describe
from sklearn_sharpbalance.training.caching import stable_hash
from sklearn_sharpbalance.training.checkpoint import fit_fingerprint

__all__ = ["SharedTraining", "active_sharing", "sharing"]


class SharedTraining:
    """Trained segments, scores and complete fits, by what they depend on.

    Attributes
    ----------
    collecting : list or None
        If it is a list, fits append their setup and return without training.
    on_device : dict
        Samples on a GPU, for :func:`keep_on_device`.
    code_names : dict
        Names of classes and functions, for :func:`keep_code_names`.
    """

    def __init__(self) -> None:
        self.collecting: list[Any] | None = None
        self.on_device: Kept = {}
        self.code_names: CodeNames = {}
        self._results: dict[str, Any] = {}
        self._fits: dict[str, Any] = {}
        self._data: dict[str, TrainingData] = {}
        self._tokens: dict[int, tuple[Callable[[], Any], str]] = {}

    # Parts of fits

    def cached(self, function: Callable, ignore=()) -> Callable:
        """Return a function whose results are kept; call it with keywords only.

        Parameters
        ----------
        function : callable
        ignore : sequence of str
            Arguments that do not change the result.
        """

        def cached_function(**arguments):
            key = self.key(function, arguments, ignore)
            if key not in self._results:
                self.keep(key, function(**arguments))
            result = self._results[key]
            if isinstance(result, Exception):
                raise result.with_traceback(None)
            return result

        return cached_function

    def key(self, function: Callable, arguments: dict[str, Any], ignore=()) -> str:
        """Return a text that is equal for calls with equal results."""
        relevant = [
            (name, self._token(value))
            for name, value in sorted(arguments.items())
            # Engines do not differ in results.
            if name != "engine" and name not in ignore
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
            self._tokens[id(members)] = (lambda: members, f"members of {key}")

    def _token(self, value):
        """Return a hash; it is computed once for an object that does not change."""
        known = self._tokens.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        token = stable_hash(value)
        with suppress(TypeError):  # numbers, strings, tuples, lists
            self._tokens[id(value)] = (weakref.ref(value), token)
        return token

    def one_of_equal(self, data: TrainingData) -> TrainingData:
        """Return the first data that was equal, so that fits hold it once."""
        if isinstance(data.X, Dataset):
            return data
        return self._data.setdefault(self._token(data), data)

    # Whole fits

    def fit_key(self, params, data: TrainingData, classes) -> str | None:
        """Return a text that is equal for fits with equal results.

        None for a Dataset, whose items would have to be read, and may be random.

        Parameters
        ----------
        params : dict
            Parameters of the estimator.
        data : TrainingData
            All samples, before validation samples are held out.
        classes : ndarray of shape (C,)
        """
        if isinstance(data.X, Dataset):
            return None
        known = fit_fingerprint(params, data_fingerprint(data, classes))
        return stable_hash(describe(list(known.items())))

    def keep_fit(self, key: str, result: Any) -> None:
        """Keep the setup and the loop of a fit, or the error that ended it."""
        self._fits[key] = result

    def fit_of(self, key: str | None) -> Any:
        """Return the setup and the loop of a fit, or None; raise its error."""
        result = None if key is None else self._fits.get(key)
        if isinstance(result, Exception):
            raise result.with_traceback(None)
        return result

    def forget(self, keys) -> None:
        """Free the memory of segments and fits."""
        for key in keys:
            self._fits.pop(key, None)
            members = _members_of(self._results.pop(key, None))
            self._tokens.pop(id(members), None)


def _members_of(result):
    """Return the list of members in a result; None if it has none."""
    if isinstance(result, tuple):  # of train_members
        return result[0]
    return result if isinstance(result, list) else None


_ACTIVE: ContextVar[SharedTraining | None] = ContextVar("sharing", default=None)


def active_sharing() -> SharedTraining | None:
    """Return what fits share in this thread, or None."""
    return _ACTIVE.get()


@contextmanager
def sharing(shared: SharedTraining | None) -> Iterator[SharedTraining | None]:
    """Let fits in this block share; None ends sharing.

    Examples
    --------
    >>> with sharing(SharedTraining()) as shared:
    ...     active_sharing() is shared
    True
    >>> active_sharing() is None
    True
    """
    before = _ACTIVE.set(shared)
    try:
        if shared is None:
            yield None
        else:
            with keep_code_names(shared.code_names):
                yield shared
    finally:
        _ACTIVE.reset(before)
