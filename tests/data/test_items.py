"""Datasets of all kinds of items give the same members as arrays of their samples."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance.arrays import dataset_labels
from sklearn_sharpbalance.datasets import load_images, pairs
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import make_images

N = 24
FEW = {"n_estimators": 1, "max_epochs": 1, "batch_size": 8, "random_state": 0}
FEW["estimator"] = SmallCNN
X, Y = make_images(N, 10, 9), np.arange(N) % 3


class Items:
    """Has a length and items by index, and no base class."""

    def __init__(self, item):
        self.item, self.read = item, []

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.read.append(i)
        return self.item(i)


class TorchItems(Items, Dataset):
    """A Dataset of torch."""


class StreamingItems(Items, IterableDataset):
    """Like the datasets of LitData and MosaicML: a stream that has an index."""

    def __iter__(self):
        return map(self.__getitem__, range(N))


class Table(Items):
    """Like a dataset of Hugging Face: columns can be read without the samples."""

    column_names = ("image", "label")

    def __init__(self):
        super().__init__(lambda i: {"image": Image.fromarray(X[i]), "label": Y[i]})

    def with_format(self, kind):
        return self

    def __getitem__(self, i):
        return Y if i == "label" else super().__getitem__(i)


def channels_first():
    return torch.from_numpy(np.moveaxis(X, -1, 1).copy())


KINDS = {
    "torch, channels last": lambda: TorchItems(lambda i: (X[i], Y[i])),
    "tensors, channels last": lambda: TensorDataset(
        torch.from_numpy(X), torch.from_numpy(Y)
    ),
    "channels first": lambda: TensorDataset(channels_first(), torch.from_numpy(Y)),
    "Pillow": lambda: TorchItems(lambda i: (Image.fromarray(X[i]), Y[i])),
    "no base class": lambda: Items(lambda i: (X[i], Y[i])),
    "dictionaries": lambda: Items(lambda i: {"image": X[i], "target": Y[i]}),
    "stream with an index": lambda: StreamingItems(lambda i: {"x": X[i], "y": Y[i]}),
    "table": Table,
    "subset": lambda: Subset(TorchItems(lambda i: (X[i], Y[i])), range(N)),
    "chosen keys": lambda: pairs(
        Items(lambda i: {"id": i, "image": X[i], "kind": Y[i]}), x="image", y="kind"
    ),
    "files": lambda: pairs(
        list(map(str, range(N))), y=Y, transform=lambda path: X[int(path)]
    ),
}


@pytest.fixture(scope="module")
def want():
    return DeepEnsembleClassifier(**FEW, engine="skorch").fit(X, Y).predict_proba(X)


@pytest.mark.parametrize("kind", KINDS)
def test_items_of_any_kind_give_the_members_of_an_array(kind, want):
    dataset = KINDS[kind]()
    clf = DeepEnsembleClassifier(**FEW).fit(dataset)
    np.testing.assert_array_equal(clf.predict_proba(dataset), want)
    np.testing.assert_array_equal(clf.predict_proba(X), want)
    assert clf.score(dataset) == clf.score(X, Y)


def test_items_of_hugging_face(want):
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(x) for x in X]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(3)}
    rows = datasets.Dataset.from_dict(
        {"image": images, "label": Y.tolist()}, datasets.Features(features)
    )
    clf = DeepEnsembleClassifier(**FEW).fit(rows)
    np.testing.assert_array_equal(clf.predict_proba(rows), want)
    only = rows.select_columns("image")
    np.testing.assert_array_equal(clf.predict_proba(only), want)


def test_labels_of_a_column_are_read_without_the_samples():
    table = Table()
    np.testing.assert_array_equal(dataset_labels(pairs(table)), Y)
    assert len(table.read) <= 3  # one of each class is compared


def test_grey_items_have_one_channel():
    grey = TorchItems(lambda i: (X[i, ..., 0], Y[i]))
    clf = DeepEnsembleClassifier(**FEW).fit(grey)
    want = DeepEnsembleClassifier(**FEW, engine="skorch").fit(X[..., :1], Y)
    np.testing.assert_array_equal(
        clf.predict_proba(grey), want.predict_proba(X[..., 0])
    )


class Output:
    """A result with logits and more, as of a model of Hugging Face."""

    def __init__(self, logits):
        self.logits, self.hidden = logits, None


@pytest.mark.parametrize("output", [Output, lambda logits: {"logits": logits}])
def test_modules_may_return_their_logits_with_more(output):
    class Model(nn.Module):
        def __init__(self, wrap=output):
            super().__init__()
            self.last, self.wrap = nn.Linear(270, 3), wrap

        def forward(self, x):
            return self.wrap(self.last(x.flatten(1)))

    def fit(**params):
        clf = DeepEnsembleClassifier(**FEW | {"estimator": Model} | params)
        return clf.fit(X, Y).predict_proba(X)

    plain = fit(estimator__module__wrap=lambda logits: logits)
    np.testing.assert_array_equal(fit(), plain)


def shape_changes(i):
    return X[i, : 10 - (i == N - 1)], Y[i]


BAD = {
    "two labels": (
        lambda i: {"image": X[i], "label": 0, "fine_label": 1},
        r"'image', 'label', 'fine_label'.*pairs\(dataset, x=",
    ),
    "two samples": (lambda i: {"a": X[i], "b": X[i], "label": 0}, r"'a', 'b', 'label'"),
    "no label": (lambda i: {"image": X[i]}, "without labels"),
    "another key later": (
        lambda i: (
            {"image" if i < 9 else "b": X[i], "label": Y[i], "z" * (i > 8): 0}
            if i > 8
            else {"image": X[i], "label": Y[i]}
        ),
        "'b', 'label', 'z'",
    ),
    "text": (lambda i: {"text": "a", "label": 0}, r"got str.*transform"),
    "shapes": (shape_changes, "must have one shape"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_items_raise(kind):
    item, text = BAD[kind]
    with pytest.raises(InvalidInputError, match=text):
        DeepEnsembleClassifier(**FEW).fit(Items(item))


def test_shapes_that_change_in_training_raise():
    first = [True] * N

    def item(i):
        size = 10 if first[i] else 8 + i % 2  # after the labels and the statistics
        return torch.zeros(3, size, 9), Y[i]

    dataset = TensorDataset(channels_first(), torch.from_numpy(Y))
    clf = DeepEnsembleClassifier(**FEW).fit(dataset)
    first[:] = [False] * N
    with pytest.raises(InvalidInputError, match="one shape"):
        clf.predict(TorchItems(lambda i: item(i) if i else dataset[0]))
    assert clf.predict(X).shape == (N,)


def test_labels_of_another_number_raise():
    with pytest.raises(InvalidInputError, match=r"24 items, but y has 3 labels"):
        pairs(Items(lambda i: X[i]), y=[0, 1, 2])


def test_files_are_read_lazily(tmp_path):
    for i, x in enumerate(X):
        folder = tmp_path / "abc"[Y[i]]
        folder.mkdir(exist_ok=True)
        Image.fromarray(x).resize((8 + i, 12)).save(folder / f"{i:02}.png")
    images, names = load_images(tmp_path, size=16)
    files = load_images(tmp_path, size=16, lazy=True)
    assert dataset_labels(files).tolist() == names.tolist()
    want = DeepEnsembleClassifier(**FEW, engine="skorch").fit(images, names)
    clf = DeepEnsembleClassifier(**FEW).fit(files)
    np.testing.assert_array_equal(clf.predict_proba(files), want.predict_proba(images))
    (tmp_path / "b" / "01.png").write_bytes(b"none")
    with pytest.raises(InvalidInputError, match=r"01\.png cannot be decoded"):
        clf.predict(files)
