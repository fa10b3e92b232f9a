"""The way in: :func:`load_images`."""

from functools import partial
from pathlib import Path
from typing import Protocol

from sklearn.utils import Bunch

from sklearn_sharpbalance.datasets._cifar import read_cifar10, read_cifar100
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
    """What reads a set: its place in, a Bunch of images, labels, class_names out."""

    def __call__(
        self, root: Path, split, download: bool, store: PictureStore
    ) -> Bunch: ...


DATASETS: dict[str, DatasetReader] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
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
    """Load a set of pictures as uint8 arrays.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``: "cifar10", "cifar100", "tiny-imagenet", "cifar10-c",
        "cifar100-c", "tiny-imagenet-c", "imagefolder" or "npz".
    root : str or Path
        Folder that holds the unpacked set (or is it); for "npz" the file itself.
    split : str or tuple, default="train"
        "train" or "test"; for "npz" also "all". An image folder that is not divided
        into folders of splits is read whole, as is for "train" a file that does not
        say which pictures are for tests; one that is divided numbers its classes as in
        "train". For a corrupted set the kind and severity, as "fog/3" or
        ``("fog", 3)``.
    download : bool, default=False
        Whether "cifar10" and "cifar100" may be fetched, by torchvision, if absent.
    mmap : bool or "auto", default="auto"
        Whether decoded pictures are kept in a ``.npy`` file and memory-mapped; "auto"
        does so from half a GiB. The ``.npy`` files of CIFAR-C are mapped as they are
        unless this is False.
    cache_dir : str or Path, default=None
        Where such files go; None is ``<root>/decoded`` (beside the file for "npz").
        Sets may share it: a file is used again only for the same pictures, by their
        place, names, sizes and times of change.
    return_X_y : bool, default=False
        Return ``(images, labels)`` in place of the Bunch.

    Returns
    -------
    Bunch
        ``images`` uint8 of shape (N, H, W, C), ``labels`` int64 of shape (N,),
        ``class_names`` list of str.

    Notes
    -----
    Files are decoded as torchvision's ``ImageFolder`` decodes them: whatever their kind
    as RGB, and as they are stored, without regard to an orientation in their EXIF data.

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
            f"Unknown set {name!r}. Choose one of "
            f"{', '.join(repr(key) for key in DATASETS)}."
        )
    if download and name not in CAN_DOWNLOAD:
        raise InvalidInputError(
            f"{name!r} cannot be downloaded from here, only "
            f"{' and '.join(CAN_DOWNLOAD)} can. Fetch it by hand into {root}."
        )
    if mmap not in (True, False, "auto"):
        raise InvalidInputError(f"mmap must be True, False or 'auto', got {mmap!r}.")
    root = Path(root).expanduser()
    beside = root.parent if name == "npz" else root
    folder = beside / DECODED if cache_dir is None else Path(cache_dir).expanduser()
    store = PictureStore(mmap if isinstance(mmap, str) else bool(mmap), folder)
    bunch = DATASETS[name](root, split, download, store)
    return (bunch.images, bunch.labels) if return_X_y else bunch
