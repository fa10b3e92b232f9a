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
N_BYTES = 3 * 32 * 32  # of a picture
HUNDRED_FILES = {"train": ["train"], "test": ["test"]}


def read_cifar10(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """Ten classes, 50,000 and 10,000 pictures of 32 x 32."""
    folder = _find(root, "cifar-10-batches-py", "CIFAR10", download)
    names = _unpickle(folder / "batches.meta", "label_names")["label_names"]
    return _read_batches(folder, TEN_FILES, split, "labels", names, store)


def read_cifar100(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """A hundred classes, 50,000 and 10,000 pictures of 32 x 32."""
    folder = _find(root, "cifar-100-python", "CIFAR100", download)
    names = _unpickle(folder / "meta", "fine_label_names")["fine_label_names"]
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
    batches = [_unpickle(path, "data", label_key) for path in sources]
    for path, batch in zip(sources, batches):
        _check_batch(path, batch["data"], batch[label_key])
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


def _check_batch(path: Path, data, labels) -> None:
    if np.shape(data) != (len(labels), N_BYTES) or np.asarray(data).dtype != np.uint8:
        raise InvalidInputError(
            f"{path} must hold {N_BYTES} bytes for each of its {len(labels)} labels, "
            f"got data of shape {np.shape(data)}. Get the set anew."
        )


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


def _unpickle(path: Path, *keys: str) -> dict:
    """The dictionary in a file, which must hold ``keys``."""
    with path.open("rb") as file:
        try:
            content = _ArrayUnpickler(file, encoding="latin1").load()
        except Exception as error:  # whatever the bytes lead to
            raise pickle.UnpicklingError(
                f"{path} cannot be read ({error}). Get the set anew from a source that "
                "you trust."
            ) from error
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise InvalidInputError(
                f"{path} holds no {key!r}: it is of another set. Get the set anew."
            )
    return content
