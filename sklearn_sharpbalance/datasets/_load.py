"""Load picture datasets by name: :func:`load_images`."""

from functools import partial
from pathlib import Path
from typing import Protocol

from sklearn.utils import Bunch

from sklearn_sharpbalance.datasets._cifar import read_cifar
from sklearn_sharpbalance.datasets._folders import (
    read_corrupted,
    read_image_folder_set,
    read_tiny_imagenet,
)
from sklearn_sharpbalance.datasets._npz import read_npz
from sklearn_sharpbalance.datasets._store import DECODED, PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["DATASETS", "DatasetReader", "load_images"]


class DatasetReader(Protocol):
    """Read one split of a dataset as a Bunch of images, labels and class_names."""

    def __call__(
        self, root: Path, split, download: bool, store: PictureStore
    ) -> Bunch: ...


DATASETS: dict[str, DatasetReader] = {
    "cifar10": partial(read_cifar, "CIFAR10"),
    "cifar100": partial(read_cifar, "CIFAR100"),
    "tiny-imagenet": read_tiny_imagenet,
    "cifar10-c": partial(read_corrupted, "cifar10-c"),
    "cifar100-c": partial(read_corrupted, "cifar100-c"),
    "tiny-imagenet-c": partial(read_corrupted, "tiny-imagenet-c"),
    "imagefolder": read_image_folder_set,
    "npz": read_npz,
}
CAN_DOWNLOAD = ("cifar10", "cifar100")


def load_images(
    name,
    root,
    *,
    split="train",
    download=False,
    mmap="auto",
    cache_dir=None,
    return_X_y=False,
):
    """Load a picture dataset as uint8 arrays.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``: "cifar10", "cifar100", "tiny-imagenet", "cifar10-c",
        "cifar100-c", "tiny-imagenet-c", "imagefolder" or "npz".
    root : str or Path
        Folder that contains the unpacked dataset, or the unpacked folder itself; for
        "npz" the file.
    split : str or tuple, default="train"
        "train" or "test"; for "npz" also "all". For a corrupted dataset the kind and
        severity, as "fog/3" or ``("fog", 3)``. An image folder without one folder per
        split is read whole; with them, the classes are numbered as in "train" for all
        splits. An npz file that does not say which pictures are for tests is read whole
        for "train".
    download : bool, default=False
        Whether torchvision may download "cifar10" and "cifar100" if they are missing.
    mmap : bool or "auto", default="auto"
        Whether decoded pictures are stored in a ``.npy`` file and memory-mapped; "auto"
        does so from half a GiB on. The ``.npy`` files of CIFAR-10-C and CIFAR-100-C are
        memory-mapped unless this is False.
    cache_dir : str or Path, default=None
        Folder for these files; None is ``<root>/decoded`` (beside the file for "npz").
        Datasets may share a folder: a file is reused only if path, names, sizes and
        modification times of the pictures are the same.
    return_X_y : bool, default=False
        Return ``(images, labels)`` instead of the Bunch.

    Returns
    -------
    Bunch
        ``images`` uint8 of shape (N, H, W, C), ``labels`` int64 of shape (N,),
        ``class_names`` list of str.

    Notes
    -----
    Picture files are decoded as torchvision's ``ImageFolder`` decodes them: all formats
    as RGB, and without applying an orientation in the EXIF data.

    The files of CIFAR-10 and CIFAR-100 are pickles. torchvision reads them, and only
    after their MD5 sums equal those of the published files. No other reader unpickles.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> from sklearn_sharpbalance.datasets import load_images
    >>> path = Path(tempfile.mkdtemp()) / "grey.npz"
    >>> np.savez(path, images=np.zeros((2, 8, 8), np.uint8), labels=[1, 0])
    >>> bunch = load_images("npz", path)
    >>> bunch.images.shape, bunch.labels, bunch.class_names
    ((2, 8, 8, 1), array([1, 0]), ['0', '1'])
    """
    if name not in DATASETS:
        raise InvalidInputError(
            f"Unknown dataset {name!r}. Choose one of "
            f"{', '.join(repr(key) for key in DATASETS)}."
        )
    if download and name not in CAN_DOWNLOAD:
        raise InvalidInputError(
            f"download=True is available for {' and '.join(CAN_DOWNLOAD)} only, got "
            f"{name!r}. Download the dataset yourself into {root}."
        )
    if mmap not in (True, False, "auto"):
        raise InvalidInputError(f"mmap must be True, False or 'auto', got {mmap!r}.")
    root = Path(root).expanduser()
    if cache_dir is not None:
        folder = Path(cache_dir).expanduser()
    elif name == "npz":
        folder = root.parent / DECODED
    else:
        folder = root / DECODED
    store = PictureStore(mmap if isinstance(mmap, str) else bool(mmap), folder)
    bunch = DATASETS[name](root, split, download, store)
    return (bunch.images, bunch.labels) if return_X_y else bunch
