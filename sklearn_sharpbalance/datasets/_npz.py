"""Picture sets in one ``.npz`` file: plain arrays, or pictures packed as JPEG."""

import io
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.utils import Bunch

from sklearn_sharpbalance.corruption.pictures import cached_array
from sklearn_sharpbalance.datasets._store import PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["read_npz"]

PACKED = ("jpeg", "offsets", "labels", "is_test", "class_names")
LAYOUTS = (
    "(jpeg, offsets, labels, is_test, class_names), (images, labels[, is_test]"
    "[, class_names]) or (x_train, y_train, x_test, y_test[, class_names])"
)


def read_npz(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """Read ``root``, the path of the file itself. Splits: "train", "test", "all"."""
    if not root.is_file():
        raise FileNotFoundError(
            f"There is no file {root}. Pass the path of an .npz file with the arrays "
            f"{LAYOUTS}."
        )
    if split not in ("train", "test", "all"):
        raise InvalidInputError(
            f"split must be 'train', 'test' or 'all', got {split!r}."
        )
    with np.load(root) as arrays:
        label = f"{root.stem}-{split}"
        if all(key in arrays for key in PACKED):
            return _read_packed(arrays, split, label, root, store)
        images, labels = _plain_arrays(arrays, split)
        names = arrays["class_names"].tolist() if "class_names" in arrays else None
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InvalidInputError(
            f"Pictures in {root} must be uint8 of shape (N, H, W, C), got "
            f"{images.dtype} of shape {images.shape}."
        )
    images = images[..., None] if images.ndim == 3 else images
    labels = labels.astype(np.int64).ravel()
    names = names or [str(label) for label in range(int(labels.max(initial=-1)) + 1)]
    path = store.path(label, images.shape, root, [root])
    if path is not None:
        images = cached_array(path, images.shape, partial(np.copyto, src=images))
    return Bunch(images=images, labels=labels, class_names=names)


def _plain_arrays(arrays, split: str) -> tuple[np.ndarray, np.ndarray]:
    if "x_train" in arrays:
        parts = ("train", "test") if split == "all" else (split,)
        images, labels = (
            np.concatenate([arrays[f"{kind}_{part}"] for part in parts])
            for kind in ("x", "y")
        )
        return images, labels
    if "images" not in arrays or "labels" not in arrays:
        raise InvalidInputError(
            f"The file holds the arrays {', '.join(arrays)}; expected {LAYOUTS}."
        )
    images, labels = arrays["images"], arrays["labels"]
    if split == "all" or "is_test" not in arrays:
        return images, labels
    rows = arrays["is_test"].astype(bool) == (split == "test")
    return images[rows], labels[rows]


def _read_packed(arrays, split, label, root: Path, store: PictureStore) -> Bunch:
    """Pictures as JPEG streams, one after the other in a single array of bytes.

    Such files lie sorted by class; a fixed shuffle makes any leading slice a fair
    sample.
    """
    jpeg, offsets = arrays["jpeg"], arrays["offsets"]
    order = np.random.default_rng(0).permutation(len(arrays["labels"]))
    if split != "all":
        order = order[arrays["is_test"][order].astype(bool) == (split == "test")]

    def decode(row: int) -> np.ndarray:
        stream = jpeg[offsets[row] : offsets[row + 1]].tobytes()
        picture = np.asarray(Image.open(io.BytesIO(stream)))
        return picture[..., None] if picture.ndim == 2 else picture

    def fill(out: np.ndarray) -> None:
        for target, row in zip(out, order):
            target[...] = decode(row)

    shape = (len(order), *(decode(order[0]).shape if len(order) else (0, 0, 3)))
    return Bunch(
        images=store.array(label, shape, fill, root, [root]),
        labels=arrays["labels"][order].astype(np.int64),
        class_names=arrays["class_names"].tolist(),
    )
