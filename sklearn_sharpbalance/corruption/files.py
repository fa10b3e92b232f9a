"""Read the published datasets CIFAR-10-C, CIFAR-100-C and Tiny-ImageNet-C."""

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
    "unpack it and pass the folder with labels.npy, or with one folder per kind."
)

# Published for tuning, in addition to the fifteen kinds of the benchmark.
EXTRA_KINDS = ("gaussian_blur", "saturate", "spatter", "speckle_noise")


class CorruptionFiles(Mapping):
    """A published dataset of corrupted pictures as a mapping from (kind, severity).

    Two layouts are supported: a folder of ``<kind>.npy`` files and ``labels.npy`` with
    the five severities one after the other (CIFAR-10-C, CIFAR-100-C), and a tree
    ``<kind>/<severity>/<class>/<picture>`` (Tiny-ImageNet-C, ImageNet-C).

    Parameters
    ----------
    root : str or Path
        Folder of the unpacked dataset.
    cache_dir : str or Path, default=None
        Folder for pictures decoded from a tree, one ``.npy`` file per kind and
        severity, which is memory-mapped until the tree changes; None decodes them into
        memory at each access. Files of the first layout are always memory-mapped.
    extra : bool, default=False
        Whether to include ``gaussian_blur``, ``saturate``, ``spatter`` and
        ``speckle_noise``. The published datasets contain them, but the benchmark, and
        the accuracies in papers, use the other fifteen kinds.

    Attributes
    ----------
    names : tuple of str
        Sorted names of the kinds in the folder.
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

    def __init__(self, root, *, cache_dir=None, extra=False) -> None:
        self.root, self.extra = Path(root).expanduser(), extra
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self._labels = self._read_labels()
        self.names = self._find_names()
        self.class_names = self._find_classes()

    def __getitem__(self, key: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return pictures, uint8 (N, H, W, 3), and labels, int64 (N,)."""
        name, severity = self._check_key(key)
        if self._labels is None:
            return self._read_tree(name, severity)
        images = _load(self.root / f"{name}.npy")
        if len(images) % len(SEVERITIES) or len(images) != len(self._labels):
            raise InvalidInputError(
                f"{self.root / name}.npy contains {len(images)} pictures and "
                f"labels.npy {len(self._labels)} labels; both must have five "
                "severities of the same pictures. Download them again."
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
        found = [name for name in found if not name.startswith(".")]
        if not self.extra and not set(found) <= set(EXTRA_KINDS):
            found = [name for name in found if name not in EXTRA_KINDS]
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
            how = " Pass extra=True to include it." if key[0] in EXTRA_KINDS else ""
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
