"""Datasets in folders: Tiny-ImageNet, any image folder, the corrupted datasets."""

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
from sklearn_sharpbalance.datasets._store import DECODED, PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["read_corrupted", "read_image_folder_set", "read_tiny_imagenet"]

CORRUPTED_FOLDERS = {
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "tiny-imagenet-c": "Tiny-ImageNet-C",
}
CIFAR10_CLASSES = [  # CIFAR-10-C has no names
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]
SPLITS = ("train", "test", "val", "valid", "validation")


def read_tiny_imagenet(
    root: Path, split: str, download: bool, store: PictureStore
) -> Bunch:
    """Read 100,000 or 10,000 pictures of 64 x 64 pixels in 200 classes.

    The labels of the official test pictures are not public: as in the literature,
    "test" is the validation part. Classes are the WordNet ids, sorted.
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
    else:  # many copies have the validation pictures in one folder per class
        paths, labels, _ = find_pictures(folder / "val", class_names=names)
    part = "train" if split == "train" else "val"
    images = _decode(paths, f"tiny-imagenet-{part}", folder, store)
    return Bunch(images=images, labels=labels, class_names=names)


def _read_annotations(path: Path, names: list[str]) -> tuple[list[str], np.ndarray]:
    """Return files and labels from lines ``<file>\\t<class>\\t...``."""
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        raise InvalidInputError(f"{path} names no pictures. Unpack it again.")
    files, labels = [], []
    for line in lines:
        file, *rest = line.split("\t")
        if not rest or rest[0] not in names:
            raise InvalidInputError(
                f"{path} must name a file and a class of train on each line, got "
                f"{line!r}. Unpack it again."
            )
        files.append(file)
        labels.append(names.index(rest[0]))
    return files, np.array(labels, dtype=np.int64)


def read_image_folder_set(
    root: Path, split: str, download: bool, store: PictureStore
) -> Bunch:
    """Read a tree ``[<split>/]<class>/<picture>`` with pictures of one size.

    The classes of a split are those of "train", if there is one, followed by those
    that only the split has. So a class has the same number in all splits. As in
    torchvision, a class without pictures is an error, unless "train" has pictures of
    it.
    """
    if not isinstance(split, str):
        raise InvalidInputError(
            f"split of an image folder must be a name such as 'train', got {split!r}."
        )
    folder = root / split if (root / split).is_dir() else root
    found = _splits(root) if folder is root else []
    if found:
        raise InvalidInputError(
            f"There is no split {split!r} in {root}, only {', '.join(map(repr, found))}"
            ". Pass one of these, or the folder that contains the classes as root."
        )
    if folder is not root and _is_flat(folder):
        raise InvalidInputError(
            f"{folder} contains pictures, but no folder of pictures per class. Move "
            f"them into such folders; if {split!r} is a class, not a split, pass "
            "split='all'."
        )
    train = [] if folder is root else _classes(root / "train", store)
    names = list(dict.fromkeys([*train, *_classes(folder, store)]))
    paths, labels, names = find_pictures(folder, class_names=names)
    empty = set(names) - {names[label] for label in set(labels)}
    _check_no_empty_class(folder, empty if split == "train" else empty - set(train))
    images = _decode(paths, f"{folder.name}-pictures", folder, store)
    return Bunch(images=images, labels=labels, class_names=names)


def _check_no_empty_class(folder: Path, empty: set[str]) -> None:
    if empty:
        raise FileNotFoundError(
            f"{folder} contains folders without pictures, which would be classes "
            f"without samples: {', '.join(map(repr, sorted(empty)))}. Remove them, or "
            f"add pictures with a known suffix ({', '.join(sorted(PICTURE_SUFFIXES))})."
        )


def _is_flat(folder: Path) -> bool:
    """Whether a folder contains pictures and no folders."""
    suffixes = {child.suffix.lower() for child in folder.iterdir()}
    return not suffixes.isdisjoint(PICTURE_SUFFIXES) and not class_folders(folder)


def _splits(root: Path) -> list[str]:
    """Return the folders named like splits that contain folders, not pictures."""
    named = [root / name for name in SPLITS if (root / name).is_dir()]
    return [p.name for p in named if any(child.is_dir() for child in p.iterdir())]


def _classes(folder: Path, store: PictureStore) -> list[str]:
    """Return the sorted names of the class folders, without those of this cache."""
    if not folder.is_dir():
        return []  # find_pictures raises
    return [n for n in class_folders(folder) if not _is_cache(folder / n, store)]


def _is_cache(folder: Path, store: PictureStore) -> bool:
    """Whether this or an earlier call stores decoded pictures in a folder."""
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
    """Read one kind and severity of a published corrupted test set."""
    folder = root / CORRUPTED_FOLDERS[name]
    folder = folder if folder.is_dir() else root
    files = CorruptionFiles(folder)
    kind, severity = _split_key(split, files)
    if files.class_names is None:  # .npy files, which are memory-mapped
        images, labels = files[kind, severity]
    else:
        tree = folder / kind / str(severity)
        paths, labels, _ = find_pictures(tree, class_names=files.class_names)
        images = _decode(paths, f"{name}-{kind}-{severity}", tree, store)
    if store.mmap is False:
        images = np.array(images)
    if name == "cifar10-c":
        class_names = CIFAR10_CLASSES
    elif files.class_names is not None:
        class_names = list(files.class_names)
    else:
        class_names = [str(label) for label in range(int(labels.max()) + 1)]
    return Bunch(images=images, labels=labels, class_names=list(class_names))


def _split_key(split, files: CorruptionFiles) -> tuple[str, int]:
    """Return kind and severity from "fog/3" or ("fog", 3)."""
    pair = split.split("/") if isinstance(split, str) else split
    if isinstance(pair, tuple | list) and len(pair) == 2:
        kind, severity = pair
        if str(severity) in ("1", "2", "3", "4", "5") and kind in files.names:
            return kind, int(severity)
    raise InvalidInputError(
        f"split of a corrupted dataset must be '<kind>/<severity>' such as 'fog/3', "
        f"got {split!r}. Kinds here: {', '.join(files.names)}."
    )
