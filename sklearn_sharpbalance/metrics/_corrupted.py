"""Corrupted images and tables, and the accuracy of ensembles on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance._validation import check_seed
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

# Without "missing_nan", because most estimators accept no NaN.
TABLE_KINDS = tuple(name for name in TABULAR_CORRUPTIONS if name != "missing_nan")


class CorruptedData(NamedTuple):
    """Samples and labels of one kind and severity."""

    kind: str
    severity: int
    X: Any
    y: Any
    rows: np.ndarray | None = None  # rows of the clean samples, if resampled


def corrupted_sets(
    X: Any,
    y: Any,
    corruptions: Any = None,
    severities: int | Iterable[int] = SEVERITIES,
    random_state: Any = 0,
) -> Iterator[CorruptedData]:
    """Yield corrupted data in the layout of ``X``, for each kind and severity.

    Parameters
    ----------
    X : array-like
        Images of uint8, (N, H, W[, C]) or (N, C, H, W), or a table (N, F).
    y : array-like of shape (N,)
    corruptions : str, callable, iterable of those, mapping, True or None
        Kinds or groups of kinds; None, True and "all" mean all kinds. A mapping of
        (kind, severity) to (samples, labels), such as ``CorruptionFiles``, is used
        instead of corrupting ``X``.
    severities : int or iterable of int
    random_state : int, Generator, RandomState or None
    """
    severities = as_severities(severities)
    corruptions = _as_kinds(corruptions)
    if isinstance(corruptions, Mapping):
        yield from _given_sets(corruptions, severities)
    elif np.ndim(X) == 2:
        yield from _corrupted_tables(
            X,
            y,
            corruptions=corruptions,
            severities=severities,
            random_state=random_state,
        )
    else:
        images, layout = _channels_last(X)
        for kind, severity, out in iter_corruptions(
            images, corruptions, severities, random_state=random_state
        ):
            out = out.transpose(0, 3, 1, 2) if layout == "first" else out
            yield CorruptedData(kind=kind, severity=severity, X=out, y=y)


def _as_kinds(corruptions: Any) -> Any:
    """Return a mapping, a list without repetitions, or None for all kinds."""
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
    """Raise for unknown kinds and severities, before anything is trained."""
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
    """Return the name of a corruption, which is a name or a function."""
    return kind if isinstance(kind, str) else function_name(kind)


def iter_outputs(
    ensembles: Iterable[Any],
    sets: Iterable[CorruptedData],
) -> Iterator[tuple[CorruptedData, Iterator[tuple[Outputs, np.ndarray]]]]:
    """Yield each set with the outputs of every ensemble and the class codes.

    Parameters
    ----------
    ensembles : iterable of fitted classifiers
        Ensembles, pipelines that end in one, or others, which have one member.
    sets : iterable
        Result of :func:`corrupted_sets`, used one at a time.
    """
    ensembles = list(ensembles)
    for data in sets:
        yield data, _outputs_and_codes(ensembles, data.X, data.y)


def _outputs_and_codes(
    ensembles: list[Any], X: Any, y: Any
) -> Iterator[tuple[Outputs, np.ndarray]]:
    for estimator in ensembles:  # one at a time, because outputs may be large
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
    """Return accuracies (K, S) of ensembles and of a member, mean over the kinds."""
    shape = (len(ensembles), len(severities))
    of_ensemble, of_member = np.zeros(shape), np.zeros(shape)
    n_kinds = np.zeros(len(severities))
    sets = corrupted_sets(
        X,
        y,
        corruptions=corruptions,
        severities=severities,
        random_state=random_state,
    )
    for data, every in iter_outputs(ensembles.values(), sets):
        s = severities.index(data.severity)
        n_kinds[s] += 1
        for k, (outputs, codes) in enumerate(every):
            of_member[k, s] += (outputs.member_probas.argmax(-1) == codes).mean()
            of_ensemble[k, s] += (outputs.proba.argmax(-1) == codes).mean()
    if not n_kinds.all():
        raise InvalidInputError(
            f"There is nothing to measure: corruptions={corruptions!r} at severities "
            f"{list(severities)} make no corrupted set. Choose at least one of each."
        )
    return of_ensemble / n_kinds, of_member / n_kinds


def _given_sets(sets: Mapping, severities: list[int]) -> Iterator[CorruptedData]:
    for kind, severity in _check_keys(sets, severities):
        X, y = sets[kind, severity]
        yield CorruptedData(kind=kind, severity=severity, X=X, y=y)


def _check_keys(sets: Mapping, severities: list[int]) -> list[tuple[str, int]]:
    """Return the keys of a mapping by kind; raise if a severity is missing."""
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
                f"corruptions has no set ({kind!r}, {severity}). Pass severities that "
                "it has for every kind."
            )
    return keys


def _corrupted_tables(
    X: Any,
    y: Any,
    corruptions: list | None,
    severities: list[int],
    random_state: Any,
) -> Iterator[CorruptedData]:
    seed = check_seed(random_state)
    for name in TABLE_KINDS if corruptions is None else corruptions:
        for severity in severities:
            table, labels = corrupt_table(X, y, name, severity, random_state=seed)
            rows = tables.original_rows(y, name, severity, random_state=seed)
            table = _as_frame(table, X, rows)
            yield CorruptedData(
                kind=kind_name(name), severity=severity, X=table, y=labels, rows=rows
            )


def _as_frame(table: np.ndarray, X: Any, rows: np.ndarray | None) -> Any:
    """Return the table as a DataFrame if ``X`` is one: estimators check its columns."""
    if hasattr(X, "iloc"):  # pandas
        index = None
        if rows is not None:
            index = X.index[rows]
        elif len(table) == len(X):
            index = X.index
        return type(X)(table, columns=X.columns, index=index)
    if hasattr(X, "with_columns"):  # polars
        return type(X)(table, schema=X.columns)
    return table


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
    """Return accuracies (S,) of an ensemble and of a member.

    ``member_probas`` has shape ([kinds,] S, M, N, C). ``combine`` turns the members'
    probabilities (M, N, C) into the ensemble's (N, C).
    """
    probas = np.asarray(member_probas)
    if probas.ndim not in (4, 5):
        raise InvalidInputError(
            f"The probabilities of {name!r} must have shape (n_severities, n_members, "
            "n_samples, n_classes), or a further axis of corruptions in front, got "
            f"{probas.shape}."
        )
    codes = encode_labels(
        y_true, n_classes=probas.shape[-1], n_samples=probas.shape[-2], labels=classes
    )
    sets = probas.reshape(-1, *probas.shape[-3:])  # (kinds * S, M, N, C)
    whole = np.stack([combine(members) for members in sets])  # (kinds * S, N, C)
    ensemble = (whole.argmax(-1) == codes).mean(-1)  # (kinds * S,)
    member = (sets.argmax(-1) == codes).mean((-1, -2))
    by_severity = (-1, probas.shape[-4])  # (kinds, S)
    return ensemble.reshape(by_severity).mean(0), member.reshape(by_severity).mean(0)
