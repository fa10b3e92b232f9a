"""Folders of image files, items of any kind as pairs, and streams of items."""

import copy
import os
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from inspect import signature
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

__all__ = ["load_images", "pairs", "stream"]

STREAM_BUFFER = 1000  # items from which the next one of a stream is drawn
HEAD = 1024  # items of a stream that are read for statistics
LABELS = ("label", "labels", "target", "targets", "y", "fine_label", "class_label")

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Errors of Pillow's decoders; the last one for huge sizes in damaged files.
DECODING_ERRORS = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
FULL = ("I", "TIFF")  # 32 bits a pixel; other files of mode "I" have 16


def pairs(dataset, x=None, y=None, transform=None):
    """Return a Dataset of pairs (sample, label) from items of another kind.

    Estimators take a dataset as it is if its items are pairs, or dictionaries with one
    key such as "label" and one other key. Use this function for other items.

    Parameters
    ----------
    dataset : object with ``__len__`` and ``__getitem__``
        A torch or Hugging Face dataset, or a list of paths, for example.
    x : key, default=None
        Key of the sample in an item that is a dictionary.
    y : key or array-like of shape (N,), default=None
        Key of the label, or the labels of all items.
    transform : callable, default=None
        Function of the sample. Its result is an array, a tensor or a Pillow image.

    Returns
    -------
    pairs : Dataset

    Examples
    --------
    >>> from sklearn_sharpbalance.datasets import pairs
    >>> rows = [{"pixels": np.zeros(4), "id": 7, "kind": "cat"}]
    >>> pairs(rows, x="pixels", y="kind")[0]
    (array([0., 0., 0., 0.]), 'cat')
    """
    return Pairs(dataset, x=x, y=y, transform=transform)


class Pairs(Dataset):
    """Items of a dataset as pairs (sample, label), or as samples without a label.

    The parameters are those of :func:`pairs`. Pillow images become arrays, and axes of
    a sample move as ``to_module`` says.
    """

    def __init__(self, dataset, x=None, y=None, transform=None, to_module=None):
        self.dataset, self.x, self.y = dataset, x, y
        self.transform, self.to_module, self.id = transform, to_module, None
        has_labels = y is not None and not isinstance(y, str | int)
        self.labels_ = np.asarray(y) if has_labels else None
        if self.labels_ is not None and len(self.labels_) != len(dataset):
            raise InvalidInputError(
                f"The dataset has {len(dataset)} items, but y has "
                f"{len(self.labels_)} labels. Pass one label for each item."
            )

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return self.pair(self.dataset[i], i)

    def pair(self, item, i=0):
        """Return the pair of an item of the dataset, or its sample without a label."""
        if isinstance(item, Mapping):
            x_key, y_key = self._keys(item)
            found = [item[key] for key in (x_key, y_key) if key is not None]
        else:
            found = list(item) if isinstance(item, tuple | list) else [item]
        x = found[0] if self.transform is None else self.transform(found[0])
        x = _pixels(x) if isinstance(x, Image.Image) else x
        x = x if self.to_module is None else self.to_module(x)
        if self.labels_ is not None:
            return x, self.labels_[i]
        return (x, *found[1:]) if len(found) > 1 else x

    def _keys(self, item):
        """Return the keys of sample and label, the latter None if there is none."""
        y, x = None if self.labels_ is not None else self.y, self.x
        if y is None and self.labels_ is None:
            named = [key for key in item if key in LABELS and key != x]
            y = named[0] if len(named) == 1 else None
        others = [key for key in item if key not in (y, self.id)]
        if x is None and len(others) == 1:
            x = others[0]
        missing = [key for key in (x, y) if key is not None and key not in item]
        if x is None or missing:
            raise InvalidInputError(
                f"The items of {type(self.dataset).__name__} are dictionaries of "
                f"{', '.join(map(repr, item))}: which is the sample, and which the "
                "label? Pass sklearn_sharpbalance.datasets.pairs(dataset, x=..., "
                "y=...) with their keys."
            )
        return x, y

    @property
    def targets(self):
        """Labels of all items, if they can be read without the samples."""
        if self.labels_ is not None:
            return self.labels_
        columns = getattr(self.dataset, "column_names", None) or ()
        named = [key for key in columns if key in LABELS and key != self.x]
        key = self.y if self.y is not None else (named[0] if len(named) == 1 else None)
        if key not in columns:
            raise AttributeError("targets")
        return np.asarray(self.dataset.with_format(None)[key])


def stream(dataset, classes, length, *, x=None, y=None, id=None, transform=None):
    """Return a Dataset for training from a stream without an index.

    Each epoch of each member reads the first ``length`` items of the stream, shuffled
    by a buffer of ``n_buffer`` of the ensemble. A stream that ends before is read
    again. If it has a method ``set_epoch``, that is called at
    the beginning of an epoch. A stream with ``state_dict`` and ``load_state_dict``
    continues where the last epoch of the member ended, also after a resume, unless the
    DataLoader has workers; ``set_epoch`` then gets the number of passes over the
    stream. Streams train deep ensembles, and SAM ensembles by
    ``selection="all"``. They cannot be predicted or split.

    With ``id`` the items of an epoch are samples that can be told apart, so all
    ensembles train on them: ``fit`` reads one epoch into an array, in memory or in a
    temporary file, as it does with a Dataset.

    Parameters
    ----------
    dataset : iterable
        An ``IterableDataset`` of torch or Hugging Face, for example.
    classes : array-like of shape (C,)
        All labels.
    length : int
        Items of an epoch: steps times ``batch_size``.
    x, y : key, default=None
        Keys of sample and label in an item that is a dictionary.
    id : key or int, default=None
        Key of what names a sample in an item, or its position in a tuple.
    transform : callable, default=None
        As in :func:`pairs`.

    Returns
    -------
    stream : Dataset

    Examples
    --------
    >>> from sklearn_sharpbalance import DeepEnsembleClassifier
    >>> from sklearn_sharpbalance.datasets import stream
    >>> class Numbers:
    ...     def __iter__(self):
    ...         yield from ((np.array([i, 1.0]), i % 2) for i in range(50))
    >>> items = stream(Numbers(), classes=[0, 1], length=50)
    >>> clf = DeepEnsembleClassifier(max_epochs=2, random_state=0).fit(items)
    >>> clf.predict([[3.0, 1.0]]).shape
    (1,)
    """
    return Stream(dataset, classes, length, x=x, y=y, id=id, transform=transform)


class Stream(Pairs):
    """Pairs (sample, class code) of a stream; the parameters are of :func:`stream`.

    By index it has the items of its head, for layout and statistics. ``n_buffer`` is
    the number of items from which the next one is drawn. ``position`` is where the
    epoch ended that was read last: the number of earlier passes, and the dataset's
    state. It stays None if the dataset has none.
    """

    def __init__(self, dataset, classes, length, *, x, y, id, transform):
        super().__init__(dataset, x=x, transform=transform)
        self.y, self.id = y, id  # keys, not the labels of all items
        check_numbers(POSITIVE_INTEGER, length=length)
        self.classes, self.length, self.n_buffer = np.unique(classes), length, 0
        self.first, self.position, self.n_passes = _state_of(dataset), None, 0

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self._head[i % len(self._head)]

    @cached_property
    def _head(self):
        return list(islice(self.coded(), min(self.length, HEAD)))

    def for_fit(self, n_buffer, to_module=None):
        """Return this stream with a buffer and the layout of a module."""
        own = copy.copy(self)
        own.n_buffer = STREAM_BUFFER if n_buffer is None else n_buffer
        if to_module is not None:
            own.to_module = to_module
            vars(own).pop("_head", None)
        return own

    def begin(self, epoch, position):
        """Go to the start of an epoch: a position, or the beginning of the stream."""
        self.position = position
        self.n_passes, state = position or (epoch, self.first)
        self._tell_passes()
        if state is not None:
            self.dataset.load_state_dict(state)

    def _tell_passes(self):
        getattr(self.dataset, "set_epoch", lambda epoch: None)(self.n_passes)

    def coded(self) -> Iterator[tuple[Any, int]]:
        """Yield pairs without an end, in the order of the stream."""
        codes = {label: code for code, label in enumerate(self.classes.tolist())}
        n, n_empty, ids = 0, 0, set[Any]()
        try:
            while n_empty < 2:  # a pass from the position at the end has no items
                n_empty += 1
                for item in self.dataset:
                    if self.id is not None and n < self.length:
                        ids.add(self._new_id(item, ids))
                    yield self._coded_pair(item, codes)
                    n, n_empty = n + 1, 0
                if self.first is not None:
                    self.n_passes += 1
                    self._tell_passes()
            raise InvalidInputError(
                f"The stream has no more items when it is read again, but length="
                f"{self.length}. Its __iter__ must start anew."
            )
        except Exception as error:
            error.add_note(f"{n} items of the stream had been read.")
            raise

    def _new_id(self, item, ids):
        """Return what names an item; raise if it has none, or was in this epoch."""
        try:
            found = item[self.id]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidInputError(f"An item has no id {self.id!r}.") from error
        if found in ids:
            raise InvalidInputError(
                f"The item with id {found!r} came twice in an epoch of length="
                f"{self.length}. Set length to the number of different items."
            )
        return found

    def _coded_pair(self, item, codes):
        pair = self.pair(item)
        if not isinstance(pair, tuple) or len(pair) < 2:
            raise InvalidInputError("The items of the stream have no label.")
        label = np.asarray(pair[1]).item()
        if label not in codes:
            raise InvalidInputError(
                f"The stream has the label {label!r}, which is not among classes="
                f"{self.classes[:10].tolist()}."
            )
        return pair[0], codes[label]

    def __iter__(self):
        """Yield the shuffled items of an epoch, then those after it."""
        worker = get_worker_info()
        own = self.length if worker is None else -(-self.length // worker.num_workers)
        pairs = self._noting_position(own)
        while True:
            yield from _shuffled(islice(pairs, own), self.n_buffer)

    def _noting_position(self, own):
        for number, pair in enumerate(self.coded(), 1):
            if number == own and self.first is not None:
                self.position = (self.n_passes, self.dataset.state_dict())
            yield pair


def _state_of(dataset):
    """Return the state of a dataset that can be continued from it, else None."""
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        return None
    needs_more = signature(dataset.state_dict).parameters  # LitData counts elsewhere
    return None if needs_more else dataset.state_dict()


def _shuffled(items, n_buffer):
    """Yield items, each drawn from the next ``n_buffer`` ones."""
    kept: list = []
    for item in items:
        kept.append(item)
        if len(kept) >= n_buffer:
            i = random.randrange(len(kept))
            kept[i], kept[-1] = kept[-1], kept[i]
            yield kept.pop()
    random.shuffle(kept)
    yield from kept


class Epoch(IterableDataset):
    """The items of a stream as torch's DataLoader reads them."""

    def __init__(self, items: Stream):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def needs_pairs(dataset, item) -> bool:
    """Return whether a dataset is read through :class:`Pairs`, by its first item."""
    if not isinstance(dataset, Dataset) or isinstance(dataset, IterableDataset):
        return True
    x = item[0] if isinstance(item, tuple | list) and item else item
    return isinstance(item, Mapping) or isinstance(x, Image.Image)


def _pixels(image: Image.Image) -> np.ndarray:
    """Return the pixels of an image: (H, W) of grey ones, else (H, W, C)."""
    kept = image.mode in ("L", "RGB", "RGBA")
    return np.array(image if kept else _as_rgb(image))


def load_images(root, *, size=None, lazy=False, skip_damaged=False):
    """Read the images ``<root>/<class>/.../<file>`` as one array.

    Parameters
    ----------
    root : str or Path
        Folder with one folder per class, as for torchvision's ``ImageFolder``.
    size : int or (int, int), default=None
        Side, or height and width, that all images are resized to. None keeps their
        size, which must then be the same.
    lazy : bool, default=False
        Whether to return a Dataset of the files instead, which are decoded and resized
        when they are read. Its labels are the names of the class folders.
    skip_damaged : bool, default=False
        Whether to leave out files that cannot be decoded, with a warning that names
        them. Each file is decoded once more for this. By default the first one raises.

    Returns
    -------
    images : ndarray of shape (N, H, W, 3), uint8
        All formats as RGB, sorted by path.
    labels : ndarray of shape (N,), str
        Names of the class folders.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from sklearn_sharpbalance.datasets import load_images
    >>> root = Path(tempfile.mkdtemp())
    >>> for name, width in (("cat", 20), ("dog", 30)):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (width, 25)).save(root / name / "0.png")
    >>> images, labels = load_images(root, size=32)
    >>> images.shape, labels.tolist()
    ((2, 32, 32, 3), ['cat', 'dog'])
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"There is no folder {root}. It should have a folder of images per class."
        )
    groups = {name: _images_under(root / name) for name in class_folders(root)}
    empty = [name for name, paths in groups.items() if not paths]
    if empty or not groups:
        raise FileNotFoundError(
            f"There is no image in {root / empty[0] if empty else root}. Pass a folder "
            "that has a folder of images per class. Known suffixes: "
            f"{', '.join(SUFFIXES)}."
        )
    labels = np.repeat(list(groups), [len(paths) for paths in groups.values()])
    paths = [path for group in groups.values() for path in group]
    if skip_damaged:
        paths, labels = _without_damaged(paths, labels)
    if lazy:
        read = partial(_read, height_width=_check_size(size))
        return Pairs(paths, y=labels, transform=read)
    return _read_all(paths, size), labels


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones."""
    found = (p for p in root.iterdir() if p.is_dir())
    return sorted(p.name for p in found if not p.name.startswith("."))


def _images_under(folder: Path) -> list[Path]:
    """Return the sorted image files at any depth, without hidden ones."""
    tree = os.walk(folder, followlinks=True)  # as torchvision does
    files = (Path(place, name) for place, _, names in tree for name in names)
    return sorted(
        path
        for path in files
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _without_damaged(paths, labels):
    """Return the files that can be decoded, and their labels; warn of the others."""
    is_good = np.array([not _is_damaged(path) for path in paths])
    damaged = [str(path) for path, good in zip(paths, is_good) if not good]
    if len(damaged) == len(paths):
        raise InvalidInputError(f"None of {len(paths)} image files can be decoded.")
    if damaged:
        named = ", ".join(damaged[:10]) + ", ..." * (len(damaged) > 10)
        warnings.warn(
            f"{len(damaged)} of {len(paths)} image files are left out, since they "
            f"cannot be decoded: {named}.",
            SharpBalanceWarning,
            stacklevel=3,
        )
    return [path for path, good in zip(paths, is_good) if good], labels[is_good]


def _is_damaged(path):
    try:
        _read(path, None)
    except InvalidInputError:
        return True
    return False


def _read_all(paths: Sequence[Path], size) -> np.ndarray:
    height_width = _check_size(size)
    first = _read(paths[0], height_width)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)
    for row, path in zip(images, paths):
        image = _read(path, height_width)
        if image.shape != row.shape:
            raise InvalidInputError(
                f"{path} has {image.shape[0]} x {image.shape[1]} pixels, the first "
                f"image {row.shape[0]} x {row.shape[1]}. Pass size= to resize them."
            )
        row[...] = image
    return images


def _check_size(size: Any) -> tuple[int, int] | None:
    """Return height and width, or None for the size of the files."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    is_valid = [isinstance(n, Integral) and int(n) > 0 for n in sides]
    if is_valid != [True, True]:
        raise InvalidInputError(
            f"size must be a positive integer, or height and width, got {size!r}."
        )
    return int(sides[0]), int(sides[1])


def _read(path: Path, height_width: tuple[int, int] | None) -> np.ndarray:
    """Return an image as (H, W, 3); raise an error with its path if it is damaged."""
    try:
        with Image.open(path) as file:
            image = _as_rgb(file)
    except DECODING_ERRORS as error:
        raise InvalidInputError(
            f"{path} cannot be decoded ({error}): it is damaged or not an image. "
            "Replace or remove it, or pass skip_damaged=True to load_images."
        ) from error
    if height_width is not None and image.size != height_width[::-1]:
        image = image.resize(height_width[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


def _as_rgb(file: Image.Image) -> Image.Image:
    if file.mode.startswith("I") and (file.mode, file.format) != FULL:
        # 16 bits a pixel: Pillow would clip them at 255 instead of scaling.
        file = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
    return file.convert("RGB")
