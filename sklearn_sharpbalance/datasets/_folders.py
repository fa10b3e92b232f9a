"""Sets that lie in folders: Tiny-ImageNet, any image folder, the corrupted ones."""

from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from sklearn_sharpbalance.corruption import CorruptionFiles
from sklearn_sharpbalance.corruption.pictures import (
    PICTURE_SUFFIXES,
    class_folders,
    decode_pictures,
    find_pictures,
    picture_shape,
)
from sklearn_sharpbalance.datasets._cifar import CIFAR10_CLASSES
from sklearn_sharpbalance.datasets._store import DECODED, PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["read_corrupted", "read_image_folder_set", "read_tiny_imagenet"]

CORRUPTED_FOLDERS = {
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "tiny-imagenet-c": "Tiny-ImageNet-C",
}
SPLITS = ("train", "test", "val", "valid", "validation")


def read_tiny_imagenet(
    root: Path, split: str, download: bool, store: PictureStore
) -> Bunch:
    """Two hundred classes, 100,000 and 10,000 pictures of 64 x 64.

    The labels of the official test pictures are not public: "test" is the validation
    part, as in the literature. Classes are the WordNet ids, sorted.
    """
    folder = root / "tiny-imagenet-200"
    folder = folder if folder.is_dir() else root
    if not (folder / "train").is_dir():
        raise FileNotFoundError(
            f"There is no {root / 'tiny-imagenet-200'}. Unpack "
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip there."
        )
    if split not in ("train", "test", "val"):
        raise InvalidInputError(f"split must be 'train' or 'test', got {split!r}.")
    names = class_folders(folder / "train")
    annotations = folder / "val" / "val_annotations.txt"
    if split == "train":
        paths, labels, _ = find_pictures(folder / "train", class_names=names)
    elif annotations.exists():
        files, labels = _read_annotations(annotations, names)
        paths = [folder / "val" / "images" / file for file in files]
    else:  # many copies have the validation pictures sorted into classes
        paths, labels, _ = find_pictures(folder / "val", class_names=names)
    part = "train" if split == "train" else "val"
    images = _decode(paths, f"tiny-imagenet-{part}", folder, store)
    return Bunch(images=images, labels=labels, class_names=names)


def _read_annotations(path: Path, names: list[str]) -> tuple[list[str], np.ndarray]:
    """Files and labels from lines ``<file>\\t<class>\\t...``."""
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        raise InvalidInputError(f"{path} names no pictures. Unpack the set again.")
    files, labels = [], []
    for line in lines:
        file, *rest = line.split("\t")
        if not rest or rest[0] not in names:
            raise InvalidInputError(
                f"{path} must name a file and a class in train on each line, got "
                f"{line!r}. Unpack the set again."
            )
        files.append(file)
        labels.append(names.index(rest[0]))
    return files, np.array(labels, dtype=np.int64)


def read_image_folder_set(
    root: Path, split: str, download: bool, store: PictureStore
) -> Bunch:
    """A tree ``[<split>/]<class>/<picture>`` with pictures of one size.

    Every split has the classes of "train", where there is one, and those that only it
    has after them: a class has one number, whichever folders lack it. A folder without
    pictures is refused, as by torchvision, unless it is that of a class in "train".
    """
    if not isinstance(split, str):
        raise InvalidInputError(
            f"split of an image folder is a name such as 'train', got {split!r}."
        )
    folder = root / split if (root / split).is_dir() else root
    found = _splits(root) if folder is root else []
    if found:
        raise InvalidInputError(
            f"There is no split {split!r} in {root}, only {', '.join(map(repr, found))}"
            ". Pass one of these, or the folder that holds the classes as root."
        )
    if folder is not root and _is_flat(folder):
        raise InvalidInputError(
            f"{folder} holds pictures, not folders of pictures, one per class. Sort "
            f"them into such folders; if {split!r} is a class, not a split, pass "
            "split='all'."
        )
    train = [] if folder is root else _classes(root / "train", store)
    names = list(dict.fromkeys([*train, *_classes(folder, store)]))
    paths, labels, names = find_pictures(folder, class_names=names)
    filled = {names[label] for label in set(labels)}
    _check_filled(folder, set(names) - filled, [] if split == "train" else train)
    images = _decode(paths, f"{folder.name}-pictures", folder, store)
    return Bunch(images=images, labels=labels, class_names=names)


def _check_filled(folder: Path, empty: set[str], known: list[str]) -> None:
    """Raise if folders without pictures would be classes, unless they are known."""
    unknown = sorted(empty.difference(known))
    if unknown:
        raise FileNotFoundError(
            f"{folder} holds folders without pictures, which would be classes without "
            f"samples: {', '.join(map(repr, unknown))}. Take them away, or put "
            f"pictures of a known kind there ({', '.join(sorted(PICTURE_SUFFIXES))})."
        )


def _is_flat(folder: Path) -> bool:
    """Whether it holds pictures and no folders."""
    children = list(folder.iterdir())
    suffixes = {child.suffix.lower() for child in children}
    return not suffixes.isdisjoint(PICTURE_SUFFIXES) and not class_folders(folder)


def _splits(root: Path) -> list[str]:
    """Folders named like splits that hold folders; pictures make a class of one."""
    named = [root / name for name in SPLITS if (root / name).is_dir()]
    return [p.name for p in named if any(child.is_dir() for child in p.iterdir())]


def _classes(folder: Path, store: PictureStore) -> list[str]:
    """Names of the folders, sorted; what was decoded may lie among them."""
    if not folder.is_dir():
        return []  # find_pictures says so
    return [n for n in class_folders(folder) if not _is_decoded(folder / n, store)]


def _is_decoded(folder: Path, store: PictureStore) -> bool:
    """Whether decoded pictures are kept there, now or in earlier calls."""
    if folder.resolve() == store.folder.resolve():
        return True
    return folder.name == DECODED and any(folder.glob("*.npy"))


def _decode(
    paths: list[Path], label: str, root: Path, store: PictureStore
) -> np.ndarray:
    shape = (len(paths), *picture_shape(paths[0]))
    return decode_pictures(paths, cache=store.path(label, shape, root, paths))


def read_corrupted(
    name: str, root: Path, split, download: bool, store: PictureStore
) -> Bunch:
    """One kind and severity of a published corrupted test set."""
    folder = root / CORRUPTED_FOLDERS[name]
    folder = folder if folder.is_dir() else root
    files = CorruptionFiles(folder)
    kind, severity = _split_key(split, files)
    if files.class_names is None:  # arrays, mapped as they are
        images, labels = files[kind, severity]
    else:
        tree = folder / kind / str(severity)
        paths, labels, _ = find_pictures(tree, class_names=files.class_names)
        images = _decode(paths, f"{name}-{kind}-{severity}", tree, store)
    if store.mmap is False:
        images = np.array(images)
    classes = CIFAR10_CLASSES if name == "cifar10-c" else files.class_names
    classes = classes or [str(label) for label in range(int(labels.max()) + 1)]
    return Bunch(images=images, labels=labels, class_names=list(classes))


def _split_key(split, files: CorruptionFiles) -> tuple[str, int]:
    """ "fog/3" or ("fog", 3)."""
    key = tuple(split.split("/")) if isinstance(split, str) else split
    is_pair = isinstance(key, tuple | list) and len(key) == 2
    kind, severity = key if is_pair else ("", "")
    if str(severity) not in ("1", "2", "3", "4", "5") or kind not in files.names:
        raise InvalidInputError(
            f"split of a corrupted set is '<kind>/<severity>' such as 'fog/3', got "
            f"{split!r}. Kinds here: {', '.join(files.names)}."
        )
    return kind, int(severity)
