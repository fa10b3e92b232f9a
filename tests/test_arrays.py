"""Slices of samples of any type."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from sklearn_sharpbalance.arrays import dataset_labels
from sklearn_sharpbalance.autodiff import Rows
from sklearn_sharpbalance.exceptions import InvalidInputError

X = np.arange(24.0).reshape(6, 4)
Y = np.array([0, 2, 1, 0, 1, 2])


class Items(Dataset):
    """A Dataset without attributes for labels."""

    def __init__(self, labels):
        self.items = labels

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return X[i], self.items[i]


def test_labels_are_read_from_items_without_attributes():
    labels = [torch.tensor([2.0], requires_grad=True), np.int64(1), 0]
    np.testing.assert_array_equal(dataset_labels(Items(labels)), [2, 1, 0])
    with pytest.raises(InvalidInputError, match=r"Items has labels of shape \(2,\)"):
        dataset_labels(Items([np.zeros(2)]))


class Published(Items):
    """As in torchvision: attributes have the labels before the transform."""

    def __init__(self, labels, change=None, target_transform=None):
        self.items = self.targets = labels
        self.change, self.target_transform = change, target_transform
        self.n_read = 0

    def __getitem__(self, i):
        self.n_read += 1
        label = self.items[i]
        for function in (self.target_transform, self.change):
            label = label if function is None else function(label)
        return X[i % len(X)], label


def is_two(label):
    return int(label == 2)


LABELS = {"ints": Y.tolist(), "array": Y, "tensor": torch.tensor(Y)}
CHANGES = {
    "target_transform": {"target_transform": is_two},
    "of tensors only": {"target_transform": lambda t: torch.as_tensor(t).eq(2).long()},
    "with a wider label": {"target_transform": lambda t: np.array([is_two(t)])},
    "somewhere else": {"change": is_two},
    "twice": {"target_transform": lambda t: t + 1, "change": lambda t: is_two(t - 1)},
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("change", CHANGES)
def test_labels_equal_those_of_the_items(labels, change):
    dataset = Published(LABELS[labels], **CHANGES[change])
    np.testing.assert_array_equal(dataset_labels(dataset), Y == 2)
    np.testing.assert_array_equal(
        dataset_labels(Subset(dataset, [5, 0, 1])), Y[[5, 0, 1]] == 2
    )
    both = ConcatDataset([dataset, dataset])
    np.testing.assert_array_equal(dataset_labels(both), np.tile(Y == 2, 2))


def test_labels_in_attributes_avoid_reading_all_items():
    dataset = Published(np.arange(600) % 200)
    np.testing.assert_array_equal(dataset_labels(dataset), np.arange(600) % 200)
    assert dataset.n_read <= 32


def test_items_without_labels_raise():
    class Bare(Items):
        def __getitem__(self, i):
            return X[i]

    with pytest.raises(InvalidInputError, match="Bare have no labels: item 0 is a nd"):
        dataset_labels(Bare(Y))
    published = Bare(Y)
    published.targets = Y
    np.testing.assert_array_equal(dataset_labels(published), Y)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"a": x}])
def test_a_dataset_of_inputs_uses_the_labels_that_are_passed(wrap):
    class Bare(Items):
        def __getitem__(self, i):
            return wrap(X[i])

    x, y = Rows(Bare([0, 0]), np.array([7, 8]))[:2]  # two samples unpack like a pair
    x = x["a"] if isinstance(x, dict) else x
    assert x.tolist() == X[:2].tolist()
    assert y.tolist() == [7, 8]
    with pytest.raises(InvalidInputError, match="have no labels"):
        Rows(Bare([0, 0]))[:2]
