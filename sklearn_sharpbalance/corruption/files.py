"""Readers of the published sets: CIFAR-10-C, CIFAR-100-C and Tiny-ImageNet-C."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from sklearn_sharpbalance.corruption._cache_names import cache_path
from sklearn_sharpbalance.corruption._checks import SEVERITIES
from sklearn_sharpbalance.corruption.pictures import (
    class_folders,
    decode_pictures,
    find_pictures,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["CorruptionFiles"]

HOW_TO_GET = (
    "Download CIFAR-10-C (zenodo.org/records/2535967), CIFAR-100-C "
    "(zenodo.org/records/3555552) or Tiny-ImageNet-C (zenodo.org/records/2536630), "
    "unpack it and pass the folder that holds labels.npy, or one folder per kind."
)

# Beside the fifteen kinds of the benchmark, which they were to be tuned on.
EXTRA_KINDS = ("gaussian_blur", "saturate", "spatter", "speckle_noise")


class CorruptionFiles(Mapping):
    """A published set of corrupted pictures, one (kind, severity) at a time.

    Two layouts are understood: a folder of ``<kind>.npy`` files and ``labels.npy``,
    five severities one after the other (CIFAR-10-C, CIFAR-100-C), and a tree
    ``<kind>/<severity>/<class>/<picture>`` (Tiny-ImageNet-C, ImageNet-C).

    Parameters
    ----------
    root : str or Path
        Folder of the unpacked set.
    cache_dir : str or Path, default=None
        Where pictures decoded from a tree are kept, one ``.npy`` file per kind and
        severity, to be memory-mapped as long as the tree stays as it is; None decodes
        them anew into memory at each access. Files of the first layout are always
        memory-mapped.
    extra : bool, default=False
        Whether to have ``gaussian_blur``, ``saturate``, ``spatter`` and
        ``speckle_noise`` too. The published sets hold them, but their authors'
        benchmark, and the accuracies of papers, are about the other fifteen kinds.

    Attributes
    ----------
    names : tuple of str
        Kinds found, sorted.
    class_names : tuple of str or None
        Names of the classes, from the folders of a tree; None for ``.npy`` files.

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

    def __init__(self, root, *, cache_dir=None, extra=False) -> None:
        self.root, self.extra = Path(root).expanduser(), extra
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self._labels = self._read_labels()
        self.names = self._find_names()
        self.class_names = self._find_classes()

    def __getitem__(self, key: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """Pictures uint8 (N, H, W, 3) and labels int64 (N,) of (kind, severity)."""
        name, severity = self._check_key(key)
        if self._labels is None:
            return self._read_tree(name, severity)
        images = _load(self.root / f"{name}.npy")
        if len(images) % len(SEVERITIES) or len(images) != len(self._labels):
            raise InvalidInputError(
                f"{self.root / name}.npy holds {len(images)} pictures and labels.npy "
                f"{len(self._labels)} labels; both must hold five severities of the "
                "same pictures. Download the set again."
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
        # Unpacking on some systems leaves hidden files of the same suffix.
        found = [name for name in found if not name.startswith(".")]
        if not self.extra and not set(found) <= set(EXTRA_KINDS):
            found = [name for name in found if name not in EXTRA_KINDS]
        if not found:
            raise FileNotFoundError(
                f"{self.root} holds neither labels.npy with one .npy file per kind nor "
                f"folders <kind>/<severity>/<class>. {HOW_TO_GET}"
            )
        return tuple(sorted(found))

    def _find_classes(self) -> tuple[str, ...] | None:
        if self._labels is not None:
            return None
        # A class has one number in all folders, also where some of them lack it.
        trees = [self.root / name / str(severity) for name, severity in self]
        found = (class_folders(tree) for tree in trees if tree.is_dir())
        return tuple(sorted({name for names in found for name in names}))

    def _check_key(self, key) -> tuple[str, int]:
        is_pair = isinstance(key, tuple) and len(key) == 2 and np.ndim(key[1]) == 0
        if not is_pair or key[1] not in SEVERITIES:
            raise KeyError(
                f"Ask for (kind, severity) with severity 1 to 5, got {key!r}."
            )
        if key[0] not in self.names:
            how = " Pass extra=True to have it." if key[0] in EXTRA_KINDS else ""
            raise KeyError(
                f"No corruption {key[0]!r} in {self.root}. "
                f"Found {', '.join(self.names)}.{how}"
            )
        return key[0], int(key[1])

    def _read_tree(self, name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
        tree = self.root / name / str(severity)
        paths, labels, _ = find_pictures(tree, class_names=self.class_names)
        cache = self.cache_dir
        if cache is not None:
            cache = cache_path(cache, f"{name}-{severity}", tree, paths)
        return decode_pictures(paths, cache=cache), labels


def _load(path: Path) -> np.ndarray:
    """The array in a file, memory-mapped; the file is named if it is damaged."""
    try:
        return np.atleast_1d(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, EOFError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as an array: it is damaged or was not unpacked "
            "whole. Download the set again."
        ) from error


def _as_codes(labels: np.ndarray, path: Path) -> np.ndarray:
    """Labels as int64 of shape (N,)."""
    is_number = labels.dtype.kind in "biuf" and np.isfinite(labels).all()
    if not is_number or (labels != np.floor(labels)).any():
        raise InvalidInputError(
            f"{path} must hold whole numbers, got {labels.dtype} of shape "
            f"{labels.shape}. Download the set again."
        )
    return np.array(labels, dtype=np.int64).ravel()
