"""Corrupted test sets: those of published files, or made from clean samples."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance._validation import check_seed
from sklearn_sharpbalance.corruption._base import (
    SEVERITIES,
    as_severities,
    check_severity,
    kind_name,
    resolve,
)
from sklearn_sharpbalance.corruption.images import (
    CORRUPTIONS,
    SIGNATURE,
    expand,
    iter_corruptions,
)
from sklearn_sharpbalance.corruption.tabular import (
    TABLE_SIGNATURE,
    TABULAR_CORRUPTIONS,
    corrupt_table,
    original_rows,
)
from sklearn_sharpbalance.datasets import class_folders, load_images
from sklearn_sharpbalance.exceptions import InvalidInputError

HOW_TO_GET = (
    "Download CIFAR-10-C (zenodo.org/records/2535967), CIFAR-100-C "
    "(zenodo.org/records/3555552) or Tiny-ImageNet-C (zenodo.org/records/2536630), "
    "unpack it and pass the folder with labels.npy, or with one folder per kind."
)
# Published for tuning, in addition to the fifteen kinds of the benchmark.
EXTRA_KINDS = ("gaussian_blur", "saturate", "spatter", "speckle_noise")
# Without "missing_nan", because most estimators accept no NaN.
TABLE_KINDS = tuple(name for name in TABULAR_CORRUPTIONS if name != "missing_nan")


class CorruptionFiles(Mapping):
    """A published dataset of corrupted images as a mapping from (kind, severity).

    Two layouts are supported: a folder of ``<kind>.npy`` files and ``labels.npy`` with
    the five severities one after the other (CIFAR-10-C, CIFAR-100-C), and a tree
    ``<kind>/<severity>/<class>/<image>`` (Tiny-ImageNet-C, ImageNet-C). Files of the
    first layout are memory-mapped, those of the second are decoded at each access.

    Parameters
    ----------
    root : str or Path
        Folder of the unpacked dataset.

    Attributes
    ----------
    names : tuple of str
        Sorted names of the kinds in the folder. The four kinds that are published for
        tuning only (``gaussian_blur``, ``saturate``, ``spatter``, ``speckle_noise``)
        are left out, as in the accuracies of papers.
    class_names : tuple of str or None
        Names of the class folders of a tree; None for ``.npy`` files.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> from sklearn_sharpbalance.corruption import CorruptionFiles
    >>> root = Path(tempfile.mkdtemp())
    >>> np.save(root / "labels.npy", np.tile([3, 8], 5))
    >>> np.save(root / "fog.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
    >>> images, labels = CorruptionFiles(root)["fog", 5]
    >>> images.shape, labels
    ((2, 32, 32, 3), array([3, 8]))
    """

    def __init__(self, root) -> None:
        self.root = Path(root).expanduser()
        self._labels = self._read_labels()
        self.names = self._find_names()
        self.class_names = self._find_classes()

    def __getitem__(self, key):
        """Return images, uint8 (N, H, W, 3), and labels, int64 (N,)."""
        name, severity = self._check_key(key)
        if self.class_names is not None:
            images, classes = load_images(self.root / name / str(severity))
            return images, np.searchsorted(list(self.class_names), classes)
        assert self._labels is not None
        images = _load(self.root / f"{name}.npy")
        if len(images) % len(SEVERITIES) or len(images) != len(self._labels):
            raise InvalidInputError(
                f"{self.root / name}.npy contains {len(images)} images and "
                f"labels.npy {len(self._labels)} labels; both must have five "
                "severities of the same images. Download them again."
            )
        n = len(images) // len(SEVERITIES)
        part = slice((severity - 1) * n, severity * n)
        return images[part], self._labels[part]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((name, severity) for name in self.names for severity in SEVERITIES)

    def __len__(self) -> int:
        return len(self.names) * len(SEVERITIES)

    def __repr__(self) -> str:
        return f"CorruptionFiles({str(self.root)!r}, {len(self.names)} kinds)"

    def _read_labels(self) -> np.ndarray | None:
        if not self.root.is_dir():
            raise FileNotFoundError(f"There is no folder {self.root}. {HOW_TO_GET}")
        path = self.root / "labels.npy"
        return _as_codes(_load(path), path) if path.exists() else None

    def _find_names(self) -> tuple[str, ...]:
        if self._labels is not None:
            found = [p.stem for p in self.root.glob("*.npy") if p.stem != "labels"]
        else:
            found = [p.name for p in self.root.iterdir() if (p / "1").is_dir()]
        # Some systems add hidden files of the same suffix.
        found = [p for p in found if not (p.startswith(".") or p in EXTRA_KINDS)]
        if not found:
            raise FileNotFoundError(
                f"{self.root} contains neither labels.npy with one .npy file per kind "
                f"nor folders <kind>/<severity>/<class>. {HOW_TO_GET}"
            )
        return tuple(sorted(found))

    def _find_classes(self) -> tuple[str, ...] | None:
        if self._labels is not None:
            return None
        # A class has the same number in all folders, even if some do not have it.
        trees = [self.root / name / str(severity) for name, severity in self]
        found = (class_folders(tree) for tree in trees if tree.is_dir())
        return tuple(sorted({name for names in found for name in names}))

    def _check_key(self, key) -> tuple[str, int]:
        is_pair = isinstance(key, tuple) and len(key) == 2 and np.ndim(key[1]) == 0
        if not is_pair or key[1] not in SEVERITIES:
            raise KeyError(
                f"The key must be (kind, severity) with severity 1 to 5, got {key!r}."
            )
        if key[0] not in self.names:
            raise KeyError(
                f"No corruption {key[0]!r} in {self.root}. "
                f"Found {', '.join(self.names)}."
            )
        return key[0], int(key[1])


def _load(path: Path) -> np.ndarray:
    """Memory-map the array in a file; raise if it is damaged."""
    try:
        return np.atleast_1d(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, EOFError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as an array: it is damaged or was not unpacked "
            "completely. Download it again."
        ) from error


def _as_codes(labels: np.ndarray, path: Path) -> np.ndarray:
    """Return labels as int64 of shape (N,)."""
    is_number = labels.dtype.kind in "biuf" and np.isfinite(labels).all()
    if not is_number or (labels != np.floor(labels)).any():
        raise InvalidInputError(
            f"{path} must contain whole numbers, got {labels.dtype} of shape "
            f"{labels.shape}. Download it again."
        )
    return np.array(labels, dtype=np.int64).ravel()


class CorruptedSet(NamedTuple):
    """Samples and labels of one kind and severity."""

    kind: str
    severity: int
    X: Any
    y: Any
    rows: np.ndarray | None = None  # rows of the clean samples, if resampled


def corrupted_sets(
    X: Any, y: Any, *, corruptions: Any, severities: Any, random_state: Any
) -> Iterator[CorruptedSet]:
    """Yield corrupted data in the layout of ``X``, for each kind and severity.

    ``X`` are images of uint8, (N, H, W[, C]) or (N, C, H, W), or a table (N, F).
    ``corruptions`` are kinds or groups of kinds; None, True and "all" mean all kinds.
    A mapping of (kind, severity) to (samples, labels), such as ``CorruptionFiles``, is
    used instead of corrupting ``X``.
    """
    kinds, severities = _as_kinds(corruptions), as_severities(severities)
    if isinstance(kinds, Mapping):
        for kind, severity in _check_keys(kinds, severities):
            yield CorruptedSet(kind, severity, *kinds[kind, severity])
    elif np.ndim(X) == 2:
        seed = check_seed(random_state)
        for kind in TABLE_KINDS if kinds is None else kinds:
            for severity in severities:
                yield _corrupted_table(X, y, kind, severity, seed)
    else:
        images, is_first = _channels_last(X)
        for kind, severity, out in iter_corruptions(
            images, kinds, severities, random_state=random_state
        ):
            out = out.transpose(0, 3, 1, 2) if is_first else out
            yield CorruptedSet(kind, severity, out, y)


def check_corruptions(X: Any, corruptions: Any, severities: Any) -> None:
    """Raise for unknown kinds and severities, before anything is trained."""
    kinds = _as_kinds(corruptions)
    severities = [check_severity(severity) for severity in as_severities(severities)]
    if isinstance(kinds, Mapping):
        _check_keys(kinds, severities)
        return
    is_table = np.ndim(X) == 2
    for kind in kinds or ():
        for one in (kind,) if is_table else expand(kind):
            if is_table:
                resolve(one, TABULAR_CORRUPTIONS, TABLE_SIGNATURE)
            else:
                resolve(one, CORRUPTIONS, SIGNATURE)


def _as_kinds(corruptions: Any) -> Any:
    """Return a mapping, a list without repetitions, or None for all kinds."""
    if corruptions is None or isinstance(corruptions, Mapping):
        return corruptions
    if corruptions is True or (isinstance(corruptions, str) and corruptions == "all"):
        return None
    alone = isinstance(corruptions, str) or callable(corruptions)
    if not alone and not isinstance(corruptions, Iterable):
        raise InvalidInputError(
            "corruptions must be True, a name, a function, a list of them or a mapping "
            f"of sets, got {corruptions!r}."
        )
    kinds = list(dict.fromkeys([corruptions] if alone else corruptions))
    names = [kind_name(kind) for kind in kinds]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"Several corruptions are called {', '.join(map(repr, twice))}. Give each "
            "function a __name__ of its own."
        )
    return kinds


def _check_keys(sets: Mapping, severities: Iterable[int]) -> list[tuple[str, int]]:
    """Return the keys of a mapping by kind; raise if a severity is missing."""
    odd = [key for key in sets if not (isinstance(key, tuple) and len(key) == 2)]
    if odd:
        raise InvalidInputError(
            "corruptions must map pairs (kind, severity) to (samples, labels), got the "
            f"key {odd[0]!r}."
        )
    kinds = dict.fromkeys(kind for kind, _ in sets)
    keys = [(kind, severity) for kind in kinds for severity in severities]
    missing = [key for key in keys if key not in set(sets)]
    if missing:
        raise InvalidInputError(
            f"corruptions has no set {missing[0]!r}. Pass severities that it has for "
            "every kind."
        )
    return keys


def _corrupted_table(
    X: Any, y: Any, kind: Any, severity: int, seed: int
) -> CorruptedSet:
    table, labels = corrupt_table(X, y, kind, severity, random_state=seed)
    rows = original_rows(y, kind, severity, random_state=seed)
    if hasattr(X, "iloc"):  # pandas: estimators check its columns
        same = rows if rows is not None else slice(None)
        index = X.index[same] if len(table) == len(X) else None
        table = type(X)(table, columns=X.columns, index=index)
    elif hasattr(X, "with_columns"):  # polars
        table = type(X)(table, schema=X.columns)
    return CorruptedSet(kind_name(kind), severity, table, labels, rows)


def _channels_last(X: Any) -> tuple[np.ndarray, bool]:
    """Return the images as (N, H, W[, C]), and whether their channels were first."""
    images = np.asarray(X)
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return images.transpose(0, 2, 3, 1), True
    return images, False
