"""CIFAR-10 and CIFAR-100, read and downloaded by torchvision."""

from functools import partial
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from sklearn_sharpbalance.datasets._store import PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["read_cifar"]


def read_cifar(
    name: str, root: Path, split: str, download: bool, store: PictureStore
) -> Bunch:
    """Read 50,000 pictures for training or 10,000 for tests, of 32 x 32 pixels.

    Parameters
    ----------
    name : {"CIFAR10", "CIFAR100"}
        Class of ``torchvision.datasets``.
    root : Path
        The folder that is unpacked from the archive, or the folder that contains it.
    split : {"train", "test"}
    download : bool
    store : PictureStore
    """
    import torchvision.datasets  # here: it is slow to import

    if split not in ("train", "test"):
        raise InvalidInputError(f"split must be 'train' or 'test', got {split!r}.")
    dataset_class = getattr(torchvision.datasets, name)
    if root.name == dataset_class.base_folder and root.is_dir():
        root = root.parent
    folder = root / dataset_class.base_folder
    if not (download or folder.is_dir()):
        raise FileNotFoundError(
            f"There is no {folder}. Unpack the python version from "
            "https://www.cs.toronto.edu/~kriz/cifar.html there, or pass download=True."
        )
    try:
        dataset = dataset_class(str(root), train=split == "train", download=download)
    except RuntimeError as error:
        raise InvalidInputError(
            f"The files in {folder} are not those of {name}: one is missing or has "
            "another MD5 sum than published. Delete the folder and download it again, "
            "for example with download=True."
        ) from error
    files = dataset_class.train_list if split == "train" else dataset_class.test_list
    images = store.array(
        label=f"{folder.name}-{split}",
        shape=dataset.data.shape,
        fill=partial(np.copyto, src=dataset.data),
        root=folder,
        sources=[folder / file_name for file_name, _ in files],
    )
    return Bunch(
        images=images,
        labels=np.array(dataset.targets, dtype=np.int64),
        class_names=list(dataset.classes),
    )
