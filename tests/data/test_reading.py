"""Items of a Dataset are read once per fit, if they are not random."""

import copy
import gc
import multiprocessing
import os
import random
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from sklearn_sharpbalance import DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data import reading, training_data
from sklearn_sharpbalance.datasets import stream
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from tests.cases import KINDS, Items, assert_same_members, make_images, rest_slow, table
from tests.data.test_huge_input import Coarse
from tests.data.test_memory_maps import MB, peak_of
from tests.training.killing import call_in_child

N, MORE = 48, 17  # items; reads of the layout and of the test for random items
FEW = {"n_estimators": 2, "max_epochs": 2, "random_state": 0, "device": "cpu"}
OF_IMAGES = FEW | {"estimator": Coarse}
SMALL_CNN = {"estimator": SmallCNN, "estimator__module__width": 4}
AUGMENTED = FEW | SMALL_CNN | {"train_transform": "crop_flip"}
X, Y = make_images(N, 17, 16), np.arange(N) % 3


def images():
    return Items(lambda i: (X[i], "abc"[Y[i]]), N)


def rows():
    values, labels = table(N)
    return Items(lambda i: (torch.tensor(values[i]), labels[i]), N)


CASES = {
    "images": (images, (X, np.array(list("abc"))[Y]), AUGMENTED),
    "table": (rows, table(N), FEW),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", rest_slow(KINDS))
@pytest.mark.parametrize("held_out", [None, 0.25])
def test_items_are_read_once_and_give_the_members_of_an_array(case, kind, held_out):
    make, given, few = CASES[case]
    items, clf = make(), kind(**few, validation_fraction=held_out)
    clf.fit(items)
    assert len(items.read) == N + MORE
    want = kind(**few, validation_fraction=held_out).fit(*given)
    assert_same_members(clf, want)
    assert clf.engine_ == want.engine_
    assert clf.score(items) == want.score(*given)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("held_out", [None, 0.25])
def test_more_items_than_the_buffer_are_kept_in_a_file(
    case, held_out, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make, given, _ = CASES[case]
    few = (OF_IMAGES if case == "images" else FEW) | {"validation_fraction": held_out}
    items, clf = make(), SharpBalance(**few, n_buffer=9)
    clf.fit(items)
    assert len(items.read) == N + MORE
    want = SharpBalance(**few).fit(*given)
    assert_same_members(clf, want)
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n_buffer", [0, None])
def test_items_are_read_at_each_use_if_none_are_kept(n_buffer, monkeypatch):
    if n_buffer is None:  # neither memory nor disk has room
        monkeypatch.setattr(reading, "FRACTION", 0)
    items = images()
    clf = DeepEnsembleClassifier(**OF_IMAGES, n_buffer=n_buffer).fit(items)
    assert len(items.read) > 4 * N
    assert_same_members(
        clf, DeepEnsembleClassifier(**OF_IMAGES, engine="skorch").fit(X, Y)
    )


OWN = np.random.default_rng(0)
DRAWS = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": np.random.rand,
    "python": random.random,
    "own generator": OWN.random,
}


@pytest.mark.parametrize("source", DRAWS)
def test_random_items_are_read_at_each_use(source):
    def flipped(i):
        return (X[i] if DRAWS[source]() < 0.5 else X[i, :, ::-1]), Y[i]

    items = Items(flipped, N)
    with pytest.warns(SharpBalanceWarning, match="random.*n_buffer=0"):
        DeepEnsembleClassifier(**OF_IMAGES).fit(items)
    assert len(items.read) > 4 * N


class Workers(Dataset):
    """Note the process that reads each item; an item may fail."""

    def __init__(self, path, bad=None):
        self.path, self.bad = path, bad

    def __len__(self):
        return N

    def __getitem__(self, i):
        with Path(self.path).open("a") as file:
            file.write(f"{os.getpid()}\n")
        if i == self.bad and os.getpid() != int(os.environ["PARENT_OF_WORKERS"]):
            raise OSError("unreadable")
        return torch.from_numpy(X[i]), Y[i]


@pytest.fixture
def parent(monkeypatch):
    monkeypatch.setenv("PARENT_OF_WORKERS", str(os.getpid()))


WITH_WORKERS = {"estimator__iterator_train__num_workers": 2}


def test_workers_are_started_once(parent, tmp_path):
    path = tmp_path / "readers"
    clf = DeepEnsembleClassifier(**OF_IMAGES, **WITH_WORKERS).fit(Workers(path))
    readers = path.read_text().split()
    assert len(set(readers) - {str(os.getpid())}) == 2
    assert len(readers) == N + MORE
    assert_same_members(clf, DeepEnsembleClassifier(**OF_IMAGES).fit(X, Y))


@pytest.mark.parametrize("n_buffer", rest_slow([None, 0], [None]))
def test_errors_of_workers_name_the_item(n_buffer, parent, tmp_path):
    clf = DeepEnsembleClassifier(**OF_IMAGES, **WITH_WORKERS, n_buffer=n_buffer)
    before = multiprocessing.active_children()
    with pytest.raises(OSError, match=r"(?s)unreadable.*Item 31 of the Dataset"):
        clf.fit(Workers(tmp_path / "readers", bad=31), y=Y)
    assert multiprocessing.active_children() == before


def test_ctrl_c_tells_how_far_reading_was():
    def item(i):
        if i == 41:
            raise KeyboardInterrupt
        return X[i], Y[i]

    items = Items(item, N)
    with pytest.raises(KeyboardInterrupt) as caught:
        SharpBalance(**OF_IMAGES).fit(items)
    assert caught.value.__notes__ == ["32 of 48 items of the Dataset had been read."]


def test_missing_values_are_found():
    items = Items(lambda i: (np.full(3, np.nan if i == 41 else 1.0), i % 2), N)
    with pytest.raises(ValueError, match="NaN"):
        SharpBalance(**FEW).fit(items)


def test_labels_of_several_classes_raise():
    items = Items(lambda i: (X[i], np.zeros(2)), N)
    with pytest.raises(InvalidInputError, match="must be one class"):
        SharpBalance(**FEW).fit(items)


def fit_and_watch(path, n_buffer):
    """Write the peak of a fit; runs in the child process."""
    torch.set_num_threads(1)
    image = np.random.default_rng(0).integers(0, 9, (64, 64, 3), dtype=np.uint8)
    items = Items(lambda i: (image + np.uint8(i % 2), i % 2), 24_000)
    params = {**FEW, "n_estimators": 1, "max_epochs": 1, "batch_size": 16}
    training_data.MAX_BATCH_BYTES = MB
    clf = DeepEnsembleClassifier(Coarse, **params, n_buffer=n_buffer)
    clf.fit(np.stack([image] * 64), np.arange(64) % 2)  # libraries
    path.write_text(str(peak_of(partial(clf.fit, items))))


@pytest.mark.slow
@pytest.mark.parametrize(("n_buffer", "fraction"), [(None, 1.0), (9, 0.0)])
def test_the_peak_of_memory_is_the_array(n_buffer, fraction, tmp_path):
    call_in_child(fit_and_watch, tmp_path / "peak", n_buffer, patience=300)
    size = 24_000 * 64 * 64 * 3
    assert int((tmp_path / "peak").read_text()) < fraction * size + 40 * MB


# Streams ------------------------------------------------------------------------------

NAMES = np.array(list("abc"))[Y]


class Numbers(IterableDataset):
    """A stream of images, which records the epochs and what is read."""

    def __init__(self, n=N):
        self.n, self.epochs, self.read = n, [], []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        for i in range(self.n):
            self.read.append(i)
            yield {"image": X[i], "label": NAMES[i]}


class Named(Numbers):
    """A stream of images with ids."""

    def __iter__(self):
        for i, item in enumerate(super().__iter__()):
            yield {**item, "key": f"image {i % 70}"}


def of_stream(numbers, length=N, **params):
    return {"X": stream(numbers, list("abc"), length, **params)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_buffer", [None, 8])
def test_a_stream_with_ids_is_read_once_and_trains_as_an_array(kind, n_buffer):
    numbers = Named()
    params = {**OF_IMAGES, "n_buffer": n_buffer, "validation_fraction": 0.2}
    clf = kind(**params).fit(**of_stream(numbers, id="key"))
    assert len(numbers.read) <= N + 2 * 8 + min(N, 1024)  # probes and statistics
    assert_same_members(clf, kind(**params).fit(X, NAMES))


BAD_IDS = {
    "no such key": (Named(), {"id": "name"}, "has no id 'name'"),
    "twice": (Named(), {"id": "key", "length": 71}, "'image 0' came twice"),
    "no id": (Named(), {"x": "image"}, r"stream\(\.\.\., id="),
    "read at each use": (Named(), {"id": "key"}, "need not be read at each use"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_streams_whose_samples_cannot_be_told_apart_raise(case):
    numbers, params, text = BAD_IDS[case]
    own = {"n_buffer": 0} if case == "read at each use" else {}
    with pytest.raises(InvalidInputError, match=text):
        SharpBalance(**OF_IMAGES, **own).fit(**of_stream(numbers, **params))


@pytest.mark.parametrize("kind", [DeepEnsembleClassifier, SharpBalance])
def test_members_read_a_stream_in_each_epoch(kind):
    own = {"selection": "all"} if kind is SharpBalance else {}
    numbers = Numbers()
    clf = kind(**OF_IMAGES, **own, batch_size=16).fit(**of_stream(numbers))
    assert sorted(numbers.epochs) == [0, 0, 1, 1]
    assert sorted(numbers.read[-4 * N :]) == sorted([*range(N)] * 4)
    assert clf.predict(X).shape == (N,)
    again = kind(**OF_IMAGES, **own, batch_size=16).fit(**of_stream(Numbers()))
    assert_same_members(again, clf)
    members = [net.module_.state_dict() for net in clf.estimators_]
    assert any(not a.equal(b) for a, b in zip(*(m.values() for m in members)))


def test_full_batches_of_a_stream_equal_those_of_an_array():
    params = {**OF_IMAGES, "batch_size": N, "train_transform": None}
    want = DeepEnsembleClassifier(**params).fit(X, NAMES)
    clf = DeepEnsembleClassifier(**params).fit(**of_stream(Numbers()))
    found, wanted = clf.predict_proba(X), want.predict_proba(X)
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_workers_read_a_stream_and_short_streams_start_again():
    clf = DeepEnsembleClassifier(**OF_IMAGES, **WITH_WORKERS, batch_size=16)
    clf.fit(**of_stream(Numbers(20)))
    assert clf.n_passes_ == 4


BAD_STREAMS = {
    "selects": (SharpBalance, Numbers(), {}, "selects single samples"),
    "held out": (DeepEnsembleClassifier, Numbers(), {"validation_fraction": 0.1}, "va"),
    "joint": (KINDS[-1], Numbers(), {}, "cannot be used with Diversified"),
    "empty": (DeepEnsembleClassifier, Numbers(0), {}, "no more items"),
}


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_what_streams_cannot_do_raises(case):
    kind, numbers, params, text = BAD_STREAMS[case]
    with pytest.raises(InvalidInputError, match=text):
        kind(**OF_IMAGES, **params).fit(**of_stream(numbers))


def test_streams_without_wrapper_or_start_raise():
    with pytest.raises(InvalidInputError, match=r"stream\(dataset, classes, length\)"):
        DeepEnsembleClassifier(**OF_IMAGES).fit(Numbers())
    with pytest.raises(InvalidInputError, match="must start anew"):
        DeepEnsembleClassifier(**OF_IMAGES).fit(**of_stream(iter(Numbers())))
    few = stream(Numbers(), classes=["a", "b"], length=3)
    with pytest.raises(InvalidInputError, match="the label 'c'") as caught:
        DeepEnsembleClassifier(**OF_IMAGES).fit(few)
    assert caught.value.__notes__ == ["2 items of the stream had been read."]
    clf = DeepEnsembleClassifier(**OF_IMAGES).fit(X, NAMES)
    with pytest.raises(InvalidInputError, match="no order"):
        clf.predict(of_stream(Numbers())["X"])


def test_partial_fit_continues_with_streams_and_items():
    clf = DeepEnsembleClassifier(**OF_IMAGES).partial_fit(**of_stream(Numbers()))
    clf.partial_fit(**of_stream(Numbers()))
    alone = Items(lambda i: X[i], N)
    want = copy.deepcopy(clf).partial_fit(X, NAMES)
    assert_same_members(clf.partial_fit(alone, NAMES), want)
