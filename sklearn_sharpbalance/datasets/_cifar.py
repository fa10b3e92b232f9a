"""CIFAR-10 and CIFAR-100 in the folder of pickles that torchvision unpacks."""

import importlib
import pickle
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from sklearn_sharpbalance.datasets._store import PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["CIFAR10_CLASSES", "read_cifar10", "read_cifar100"]

CIFAR10_CLASSES = [
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
TEN_FILES = {
    "train": [f"data_batch_{i}" for i in range(1, 6)],
    "test": ["test_batch"],
}
HUNDRED_FILES = {"train": ["train"], "test": ["test"]}


def read_cifar10(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """Ten classes, 50,000 and 10,000 pictures of 32 x 32."""
    folder = _find(root, "cifar-10-batches-py", "CIFAR10", download)
    names = _unpickle(folder / "batches.meta")["label_names"]
    return _read_batches(folder, TEN_FILES, split, "labels", names, store)


def read_cifar100(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """A hundred classes, 50,000 and 10,000 pictures of 32 x 32."""
    folder = _find(root, "cifar-100-python", "CIFAR100", download)
    names = _unpickle(folder / "meta")["fine_label_names"]
    return _read_batches(folder, HUNDRED_FILES, split, "fine_labels", names, store)


def _find(root: Path, folder_name: str, torchvision_name: str, download: bool) -> Path:
    """The unpacked folder, at or under ``root``."""
    for folder in (root / folder_name, root):
        if folder.name == folder_name and folder.is_dir():
            return folder
    if download:
        torchvision_datasets = importlib.import_module("torchvision.datasets")
        getattr(torchvision_datasets, torchvision_name)(str(root), download=True)
        return root / folder_name
    raise FileNotFoundError(
        f"There is no {root / folder_name}. Unpack the python version from "
        f"https://www.cs.toronto.edu/~kriz/cifar.html there, or pass download=True."
    )


def _read_batches(folder, files, split, label_key, names, store) -> Bunch:
    if split not in files:
        raise InvalidInputError(f"split must be 'train' or 'test', got {split!r}.")
    sources = [folder / name for name in files[split]]
    batches = [_unpickle(path) for path in sources]
    labels = np.concatenate([batch[label_key] for batch in batches]).astype(np.int64)

    def fill(out: np.ndarray) -> None:
        start = 0
        for batch in batches:
            planes = batch["data"].reshape(-1, 3, 32, 32)
            out[start : start + len(planes)] = planes.transpose(0, 2, 3, 1)
            start += len(planes)

    label = f"{folder.name}-{split}"
    images = store.array(label, (len(labels), 32, 32, 3), fill, folder, sources)
    return Bunch(images=images, labels=labels, class_names=list(names))


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and nothing else, whatever the file asks for."""

    ALLOWED = {"_reconstruct", "scalar", "ndarray", "dtype", "encode"}

    def find_class(self, module: str, name: str):
        if name in self.ALLOWED and module.split(".")[0] in ("numpy", "_codecs"):
            # numpy 2 moved what pickles of numpy 1 name.
            module = module.replace("numpy.core", "numpy._core")
            return getattr(importlib.import_module(module), name)
        raise pickle.UnpicklingError(
            f"The file asks for {module}.{name}, which no picture set needs. Do not "
            "trust it."
        )


def _unpickle(path: Path) -> dict:
    with path.open("rb") as file:
        try:
            return _ArrayUnpickler(file, encoding="latin1").load()
        except (pickle.UnpicklingError, EOFError) as error:
            raise pickle.UnpicklingError(
                f"{path} cannot be read ({error}). Get the set anew from a source that "
                "you trust."
            ) from error
