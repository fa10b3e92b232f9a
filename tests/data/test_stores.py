"""Data in the stores of users: folders, Hugging Face, LitData, streams with a state.

``pip install -e ".[data]"`` has the packages of the slow tests.
"""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.datasets import pairs, stream
from tests.cases import assert_same_members, make_images, rest_slow
from tests.data.test_huge_input import Coarse

N = 48
FEW = {"n_estimators": 2, "max_epochs": 3, "random_state": 0, "device": "cpu"}
FEW |= {"batch_size": 16, "estimator": Coarse}
X, Y = make_images(N, 16, 16), np.arange(N) % 3


def fit(items, **params):
    return DeepEnsembleClassifier(**FEW | params).fit(items)


@pytest.mark.parametrize(
    ("n_files", "n_buffer"), rest_slow([(200, 50), (2000, 500), (2000, None)])
)
def test_a_folder_of_files(n_files, n_buffer, tmp_path):
    for i in range(n_files):
        folder = tmp_path / "train" / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(X[i % N]).save(folder / f"{i:04}.jpg")
    folder = ImageFolder(tmp_path / "train")
    pixels = np.stack([np.asarray(image) for image, _ in folder])
    few = {"max_epochs": 1, "batch_size": 100}
    want = DeepEnsembleClassifier(**FEW | few).fit(pixels, folder.targets)
    clf = fit(folder, **few, n_buffer=n_buffer)
    assert_same_members(clf, want)
    np.testing.assert_array_equal(clf.predict(folder), want.predict(pixels))


# Streams that can continue -----------------------------------------------------------


class Stateful:
    """A stream that continues from a state."""

    def __init__(self):
        self.start, self.next, self.read, self.epochs = 0, 0, [], []

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.start = state["next"]

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        start, self.start = self.start, 0
        for i in range(start, N):
            self.read.append(i)
            self.next = i + 1
            yield X[i], Y[i]


def of_state(items, length=20):
    return stream(items, classes=[0, 1, 2], length=length)


@pytest.mark.parametrize("n_buffer", rest_slow([None, 1]))
def test_the_next_epoch_continues(n_buffer):
    items = Stateful()
    given = of_state(items)
    items.read.clear()
    items.epochs.clear()
    params = {"n_estimators": 1, "batch_size": 20, "n_buffer": n_buffer}
    fit(given, **params, standardize=False, train_transform=None)
    n_head = len(items.read) - 60
    assert items.read[n_head:] == [*range(N), *range(12)]
    assert items.epochs == [0, 0, 0, 1]


@pytest.mark.parametrize("length", [20, N])
def test_a_resumed_fit_continues(length, tmp_path, snapshots):
    whole = fit(of_state(Stateful(), length), checkpoint_dir=tmp_path / "whole")
    assert len(snapshots) > 2
    for folder in snapshots[:2]:
        resumed = fit(of_state(Stateful(), length), checkpoint_dir=folder)
        assert_same_members(resumed, whole)


# Packages ----------------------------------------------------------------------------


def hugging_face():
    """Return X and Y as a dataset with columns."""
    datasets = pytest.importorskip("datasets")
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(3)}
    columns = {"image": list(map(Image.fromarray, X)), "label": Y.tolist()}
    return datasets.Dataset.from_dict(columns, datasets.Features(features))


@pytest.mark.slow
def test_a_dataset_of_hugging_face_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    hugging_face().save_to_disk(tmp_path / "rows")
    rows = datasets.load_from_disk(tmp_path / "rows")
    want = DeepEnsembleClassifier(**FEW).fit(X, Y)
    for n_buffer in (None, 9):
        assert_same_members(fit(rows, n_buffer=n_buffer), want)
    split = fit(rows.shuffle(seed=0), validation_fraction=0.25)
    np.testing.assert_array_equal(split.predict(rows), split.predict(X))
    normed = rows.with_transform(lambda batch: batch)
    assert_same_members(fit(normed), want)


@pytest.mark.slow
def test_a_stream_of_hugging_face_resumes(tmp_path, snapshots):
    rows = hugging_face()

    def given():
        return of_state(rows.to_iterable_dataset(num_shards=2))

    whole = fit(given(), checkpoint_dir=tmp_path / "whole")
    assert_same_members(fit(given()), whole)
    assert_same_members(fit(given(), checkpoint_dir=snapshots[0]), whole)


@pytest.mark.slow
def test_a_loader_with_a_state_resumes(tmp_path, snapshots):
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def given():
        loader = loaders.StatefulDataLoader(
            pairs(list(X), y=Y),
            batch_size=None,
            shuffle=True,
            generator=torch.Generator().manual_seed(0),
        )
        return of_state(loader)

    whole = fit(given(), checkpoint_dir=tmp_path / "whole")
    assert_same_members(fit(given()), whole)
    assert_same_members(fit(given(), checkpoint_dir=snapshots[0]), whole)


def lit_item(i):
    return {"image": X[i], "label": int(Y[i])}


@pytest.mark.slow
def test_a_dataset_of_litdata(tmp_path):
    litdata = pytest.importorskip("litdata")
    place = str(tmp_path / "chunks")
    litdata.optimize(
        fn=lit_item,
        inputs=list(range(N)),
        output_dir=place,
        num_workers=1,
        chunk_bytes="10KB",
    )
    items = litdata.StreamingDataset(place)
    want = DeepEnsembleClassifier(**FEW).fit(X, Y)
    for n_buffer in (None, 9):
        assert_same_members(fit(items, n_buffer=n_buffer), want)
    whole = fit(of_state(items, N))
    assert whole.predict(X).shape == (N,)
