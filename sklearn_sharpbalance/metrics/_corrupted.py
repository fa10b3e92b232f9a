"""Corrupted pictures and tables, and who still recognises them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.corruption import (
    SEVERITIES,
    TABULAR_CORRUPTIONS,
    corrupt_table,
    iter_corruptions,
)
from sklearn_sharpbalance.corruption import _registry as pictures
from sklearn_sharpbalance.corruption import tabular as tables
from sklearn_sharpbalance.corruption._checks import (
    as_severities,
    check_severity,
    function_name,
)
from sklearn_sharpbalance.corruption._random import resolve_seed
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.metrics._outputs import Outputs, outputs_of

__all__ = [
    "accuracies",
    "check_corruptions",
    "corrupted_sets",
    "iter_outputs",
    "mean_accuracies",
]

# Most estimators refuse NaN, which this kind writes: it has to be asked for.
TABLE_KINDS = tuple(name for name in TABULAR_CORRUPTIONS if name != "missing_nan")


class CorruptedData(NamedTuple):
    """Samples and labels of one kind and severity."""

    kind: str
    severity: int
    X: Any
    y: Any
    rows: np.ndarray | None = None  # of the clean samples, where they were drawn anew


def corrupted_sets(
    X: Any,
    y: Any,
    corruptions: Any = None,
    severities: int | Iterable[int] = SEVERITIES,
    random_state: Any = 0,
) -> Iterator[CorruptedData]:
    """Yield corrupted data, laid out as ``X``; every kind and severity once.

    Parameters
    ----------
    X : array-like
        Pictures of uint8, (N, H, W[, C]) or (N, C, H, W), or a table (N, F).
    y : array-like of shape (N,)
    corruptions : str, callable, iterable of those, mapping, True or None
        Kinds or groups of them; None, True and "all" are all of them. A mapping of
        (kind, severity) to (samples, labels), such as ``CorruptionFiles``, is read
        instead of corrupting ``X``.
    severities : int or iterable of int
    random_state : int, Generator, RandomState or None
    """
    severities = as_severities(severities)
    corruptions = _as_kinds(corruptions)
    if isinstance(corruptions, Mapping):
        yield from _given_sets(corruptions, severities)
    elif np.ndim(X) == 2:
        yield from _corrupted_tables(X, y, corruptions, severities, random_state)
    else:
        images, layout = _channels_last(X)
        for kind, severity, out in iter_corruptions(
            images, corruptions, severities, random_state
        ):
            out = out.transpose(0, 3, 1, 2) if layout == "first" else out
            yield CorruptedData(kind, severity, out, y)


def _as_kinds(corruptions: Any) -> Any:
    """A mapping, a list without repetitions, or None for all kinds."""
    if corruptions is None or isinstance(corruptions, Mapping):
        return corruptions
    if corruptions is True or (isinstance(corruptions, str) and corruptions == "all"):
        return None
    alone = isinstance(corruptions, str) or callable(corruptions)
    kinds = list(dict.fromkeys([corruptions] if alone else corruptions))
    names = [kind_name(kind) for kind in kinds]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"Several corruptions are called {', '.join(map(repr, twice))}. Give each "
            "function a __name__ of its own."
        )
    return kinds


def check_corruptions(X: Any, corruptions: Any, severities: Any) -> None:
    """Refuse kinds and severities that are not there, before anything is trained."""
    kinds = _as_kinds(corruptions)
    severities = [check_severity(severity) for severity in as_severities(severities)]
    if isinstance(kinds, Mapping):
        _check_keys(kinds, severities)
    elif np.ndim(X) == 2:
        for kind in kinds or ():
            tables._resolve(kind)
    else:
        for kind in kinds or ():
            for one in pictures._expand(kind):
                pictures._resolve(one)


def kind_name(kind: Any) -> str:
    """What a corruption is called: its own name, or that of the function."""
    return kind if isinstance(kind, str) else function_name(kind)


def iter_outputs(
    ensembles: Iterable[Any],
    sets: Iterable[CorruptedData],
) -> Iterator[tuple[CorruptedData, Iterator[tuple[Outputs, np.ndarray]]]]:
    """Yield each set with every ensemble's outputs and the codes of the labels.

    Parameters
    ----------
    ensembles : iterable of fitted classifiers
        Ensembles, pipelines that end in one, or others, which have one member.
    sets : iterable
        What :func:`corrupted_sets` yields, worked on one at a time.
    """
    ensembles = list(ensembles)
    for data in sets:
        yield data, _outputs_and_codes(ensembles, data.X, data.y)


def _outputs_and_codes(
    ensembles: list[Any], X: Any, y: Any
) -> Iterator[tuple[Outputs, np.ndarray]]:
    for estimator in ensembles:  # one at a time: with many classes they are large
        outputs = outputs_of(estimator, X)
        yield outputs, outputs.codes(y)


def mean_accuracies(
    ensembles: Mapping[str, Any],
    X: Any,
    y: Any,
    corruptions: Iterable | Mapping | None,
    severities: tuple[int, ...],
    random_state: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (K, S) of ensembles and of a member, mean over the kinds."""
    shape = (len(ensembles), len(severities))
    of_ensemble, of_member = np.zeros(shape), np.zeros(shape)
    n_kinds = np.zeros(len(severities))
    sets = corrupted_sets(X, y, corruptions, severities, random_state)
    for data, every in iter_outputs(ensembles.values(), sets):
        s = severities.index(data.severity)
        n_kinds[s] += 1
        for k, (outputs, codes) in enumerate(every):
            of_member[k, s] += (outputs.member_probas.argmax(-1) == codes).mean()
            of_ensemble[k, s] += (outputs.proba.argmax(-1) == codes).mean()
    if not n_kinds.all():
        raise InvalidInputError(
            f"There is nothing to measure: corruptions={corruptions!r} at severities "
            f"{list(severities)} make no corrupted set."
        )
    return of_ensemble / n_kinds, of_member / n_kinds


def _given_sets(sets: Mapping, severities: list[int]) -> Iterator[CorruptedData]:
    for kind, severity in _check_keys(sets, severities):
        yield CorruptedData(kind, severity, *sets[kind, severity])


def _check_keys(sets: Mapping, severities: list[int]) -> list[tuple[str, int]]:
    """Keys of a mapping, by kind; all severities must be there for each."""
    odd = [key for key in sets if not (isinstance(key, tuple) and len(key) == 2)]
    if odd:
        raise InvalidInputError(
            "corruptions must map pairs (kind, severity) to (samples, labels), got the "
            f"key {odd[0]!r}."
        )
    kinds = dict.fromkeys(kind for kind, _ in sets)
    keys = [(kind, severity) for kind in kinds for severity in severities]
    found = set(sets)
    for kind, severity in keys:
        if (kind, severity) not in found:
            raise InvalidInputError(
                f"corruptions has no set ({kind!r}, {severity}). Pass the severities "
                "that it has for every kind."
            )
    return keys


def _corrupted_tables(
    X: Any,
    y: Any,
    corruptions: list | None,
    severities: list[int],
    random_state: Any,
) -> Iterator[CorruptedData]:
    seed = resolve_seed(random_state)
    for name in TABLE_KINDS if corruptions is None else corruptions:
        for severity in severities:
            table, labels = corrupt_table(X, y, name, severity, random_state=seed)
            rows = tables.original_rows(y, name, severity, seed)
            table = _as_frame(table, X, rows)
            yield CorruptedData(kind_name(name), severity, table, labels, rows)


def _as_frame(table: np.ndarray, X: Any, rows: np.ndarray | None) -> Any:
    """The table as ``X`` came: estimators look at the names of a DataFrame."""
    if hasattr(X, "iloc"):
        same = rows is None and len(table) == len(X)
        index = X.index if same else None if rows is None else X.index[rows]
        return type(X)(table, columns=X.columns, index=index)
    return type(X)(table, schema=X.columns) if hasattr(X, "with_columns") else table


def _channels_last(X: Any) -> tuple[np.ndarray, str]:
    images = np.asarray(X)
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return images.transpose(0, 2, 3, 1), "first"
    return images, "last"


def accuracies(
    y_true: Any,
    member_probas: Any,
    classes: Any,
    name: str,
    combine: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (S,) of an ensemble and of a member, from ([kinds,] S, M, N, C).

    ``combine`` makes the ensemble's probabilities (N, C) of its members' (M, N, C).
    """
    probas = np.asarray(member_probas)
    if probas.ndim not in (4, 5):
        raise InvalidInputError(
            f"The probabilities of {name!r} must have shape (n_severities, n_members, "
            "n_samples, n_classes), or that with an axis of corruptions before it, got "
            f"{probas.shape}."
        )
    codes = encode_labels(y_true, probas.shape[-1], probas.shape[-2], classes)
    sets = probas.reshape(-1, *probas.shape[-3:])  # (kinds * S, M, N, C)
    whole = np.stack([combine(members) for members in sets])  # (kinds * S, N, C)
    by_set = (
        (whole.argmax(-1) == codes).mean(-1),
        (sets.argmax(-1) == codes).mean((-1, -2)),
    )
    n_severities = probas.shape[-4]
    ensemble, member = (v.reshape(-1, n_severities).mean(0) for v in by_set)
    return ensemble, member
