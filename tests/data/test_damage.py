"""Data that fail during a fit: one clear error, and the next fit continues."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info
from torchvision.datasets import ImageFolder

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.data.loading import read_batches
from sklearn_sharpbalance.datasets import load_images, pairs, stream
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from tests.cases import Items, assert_same_members, make_images, rest_slow
from tests.data.test_huge_input import Coarse

N, LEFT = 48, 30
X, Y = make_images(N, 16, 16), np.arange(N) % 3
FEW = {"estimator": Coarse, "n_estimators": 2, "max_epochs": 4, "batch_size": 16}
FEW |= {"random_state": 0, "device": "cpu", "standardize": False}
WORKERS = {"estimator__iterator_train__num_workers": 2}


class Fragile(Dataset):
    """Images in a store that is damaged after some reads, until it is mended."""

    def __init__(self, folder, damage, reads):
        self.folder, self.damage, self.reads = folder, damage, reads

    def is_damaged(self):
        done = Path(self.folder, "reads").stat().st_size
        return done > self.reads and not Path(self.folder, "mended").exists()

    def __len__(self):
        return LEFT if self.damage == "shorter" and self.is_damaged() else N

    def __getitem__(self, i):
        with Path(self.folder, "reads").open("a") as file:
            file.write(".")
        if not self.is_damaged():
            return X[i], Y[i]
        if self.damage == "worker" and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.damage == "shorter" and i >= LEFT:
            raise IndexError(i)
        if self.damage == "unreadable":
            raise OSError("no answer")
        return (X[i, : 15 + i % 2] if self.damage == "shape" else X[i]), Y[i]


DAMAGES = {
    "shape": (InvalidInputError, "must have one shape"),
    "shorter": (InvalidInputError, "has become shorter, and has 30 items"),
    "unreadable": (OSError, r"(?s)no answer.*Item \d+ of the Dataset was being read"),
    "worker": (RuntimeError, r"(?s)DataLoader worker.*A process that read items died"),
}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "reads").touch()

    def make(damage, reads):
        return Fragile(str(tmp_path / "store"), damage, reads)

    return make


def ensemble(damage, **params):
    """Return an ensemble, with workers if one of them is to die."""
    return DeepEnsembleClassifier(
        **FEW | params | (WORKERS if damage == "worker" else {})
    )


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("n_buffer", [None, 0])
def test_damage_raises_and_the_fitted_model_stays(damage, n_buffer, store):
    clf = ensemble(damage, n_buffer=n_buffer).fit(X, Y)
    before = clf.predict_proba(X)
    kind, text = DAMAGES[damage]
    with pytest.raises(kind, match=text):
        clf.fit(store(damage, reads=30), Y)
    np.testing.assert_array_equal(clf.predict_proba(X), before)


class BrokenPipe:
    """A loader whose only worker is killed while it sends a batch."""

    num_workers = 1

    def __iter__(self):
        yield X[:16]
        raise ConnectionResetError


def test_a_broken_pipe_is_told_as_a_dead_worker():
    with pytest.raises(RuntimeError, match="A process that read items died"):
        list(read_batches(BrokenPipe()))


@pytest.mark.parametrize("damage", rest_slow(DAMAGES, ["shorter", "worker"]))
def test_the_fit_continues_when_the_data_are_mended(damage, store, every_epoch):
    items = store(damage, reads=5 * N)  # in the third epoch of the first member
    folder = Path(items.folder)
    params = {"n_buffer": 0, "checkpoint_dir": folder.parent / "kept"}
    kind, text = DAMAGES[damage]
    with pytest.raises(kind, match=text):
        ensemble(damage, **params).fit(items, Y)
    (folder / "mended").touch()
    (folder / "reads").write_text("")
    resumed = ensemble(damage, **params).fit(items, Y)
    assert len((folder / "reads").read_text()) < 5 * N
    want = ensemble(damage, n_buffer=0).fit(items, Y)
    assert_same_members(resumed, want)


def test_an_item_of_a_split_is_named_by_its_place_in_the_dataset():
    def item(path):
        if path == "17" and failing:
            raise OSError("unreadable")
        return X[int(path)]

    failing = []
    files = pairs([str(i) for i in range(N)], y=Y, transform=item)
    clf = DeepEnsembleClassifier(**FEW, n_buffer=0, validation_fraction=0.25).fit(files)
    failing.append(True)
    part = Subset(files, range(12, N))
    for use in (clf.fit, clf.predict):
        with pytest.raises(OSError, match="unreadable") as caught:
            use(part)
        (note,) = caught.value.__notes__
        assert note == "Item 17 of the Dataset was being read from 17."


@pytest.mark.parametrize("n_buffer", [None, 0])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_items_without_a_label_raise(missing, n_buffer):
    items = Items(lambda i: (X[i], missing if i in (20, 30) else int(Y[i])), N)
    with pytest.raises(InvalidInputError, match="2 of 48 samples, first in row 20"):
        DeepEnsembleClassifier(**FEW, n_buffer=n_buffer).fit(items)


def test_items_with_a_label_outside_of_the_classes_raise():
    items = Items(lambda i: (X[i], Y[i]), N)
    clf = DeepEnsembleClassifier(**FEW)
    with pytest.raises(InvalidInputError, match=r"labels \[2\] that are not among"):
        clf.partial_fit(items, classes=[0, 1])
    clf.partial_fit(X[:9], Y[:9], classes=[0, 1, 2])
    before = clf.predict_proba(X)
    with pytest.raises(InvalidInputError, match=r"labels \[7\] that are not among"):
        clf.partial_fit(Items(lambda i: (X[i], 7 if i == 40 else Y[i]), N))
    np.testing.assert_array_equal(clf.predict_proba(X), before)


@pytest.fixture
def photos(tmp_path):
    for i, image in enumerate(X):
        folder = tmp_path / "photos" / "abc"[Y[i]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:02}.png")
    return tmp_path / "photos"


def cut(path):
    path.write_bytes(path.read_bytes()[:-60])


@pytest.mark.parametrize("n_buffer", [None, 0])
def test_a_damaged_file_is_named(n_buffer, photos):
    cut(photos / "b" / "22.png")
    clf = DeepEnsembleClassifier(**FEW, n_buffer=n_buffer)
    with pytest.raises(InvalidInputError, match=r"b/22\.png cannot be decoded"):
        clf.fit(load_images(photos, lazy=True))
    with pytest.raises(OSError, match="truncated") as caught:
        clf.fit(ImageFolder(photos))
    assert f"from {photos / 'b' / '22.png'}." in caught.value.__notes__[0]


@pytest.mark.parametrize("lazy", [False, True])
def test_damaged_files_are_left_out_on_request(lazy, photos):
    bad = [photos / "b" / "22.png", photos / "c" / "02.png"]
    for path in bad:
        cut(path)
    text = rf"2 of 48 image files are left out.*: {bad[0]}, {bad[1]}\."
    with pytest.warns(SharpBalanceWarning, match=text):
        found = load_images(photos, lazy=lazy, skip_damaged=True)
    for path in bad:
        path.unlink()
    images, labels = load_images(photos)
    given = (found,) if lazy else found
    if not lazy:
        np.testing.assert_array_equal(found[0], images)
        np.testing.assert_array_equal(found[1], labels)
    want = DeepEnsembleClassifier(**FEW).fit(images, labels)
    assert_same_members(DeepEnsembleClassifier(**FEW).fit(*given), want)
    for path in photos.glob("*/*"):
        path.write_bytes(b"none")
    with pytest.raises(InvalidInputError, match="None of 46 image files"):
        load_images(photos, skip_damaged=True)


class EndsEarly(IterableDataset):
    """A stream that can be read a few times only, until it is mended."""

    def __init__(self, folder, passes):
        self.folder, self.passes = folder, passes

    def __iter__(self):
        reads = Path(self.folder, "reads")
        with reads.open("a") as file:
            file.write(".")
        if reads.stat().st_size <= self.passes or Path(self.folder, "mended").exists():
            yield from zip(X, Y)


@pytest.mark.parametrize("passes", [2, 6])
def test_a_stream_that_ends_early_raises_and_the_fit_continues(
    passes, tmp_path, every_epoch
):
    (tmp_path / "reads").touch()

    def fit(**params):
        items = stream(EndsEarly(str(tmp_path), passes), classes=[0, 1, 2], length=N)
        return DeepEnsembleClassifier(**FEW | params).fit(items)

    kept = {"checkpoint_dir": tmp_path / "kept"}
    with pytest.raises(InvalidInputError, match="no more items when it is read again"):
        fit(**kept)
    (tmp_path / "mended").touch()
    (tmp_path / "reads").write_text("")
    resumed = fit(**kept)
    assert_same_members(resumed, fit())
