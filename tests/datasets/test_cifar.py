"""CIFAR-10 and CIFAR-100 in the folders that torchvision unpacks."""

import numpy as np
import pytest
import torchvision.datasets

from sklearn_sharpbalance.datasets import load_images
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.datasets.cases import IMAGES, LABELS, planes, write_cifar10, write_pickle


@pytest.mark.usefixtures("any_md5")
def test_cifar10_is_read_from_the_folder_or_its_parent(tmp_path):
    write_cifar10(tmp_path)
    train = load_images("cifar10", tmp_path)
    test = load_images("cifar10", tmp_path / "cifar-10-batches-py", split="test")
    np.testing.assert_array_equal(train.images, IMAGES[:20])
    np.testing.assert_array_equal(train.labels, LABELS[:20])
    np.testing.assert_array_equal(test.images, IMAGES[20:])
    np.testing.assert_array_equal(test.labels, LABELS[20:])
    assert train.images.flags.c_contiguous
    assert train.labels.dtype == np.int64
    assert train.class_names[3] == "class 3"


@pytest.mark.usefixtures("any_md5")
def test_cifar100_has_the_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    for split, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
        fine = (LABELS[rows] * 7).tolist()
        batch = {"data": planes(IMAGES[rows]), "fine_labels": fine}
        write_pickle(folder / split, {**batch, "coarse_labels": [0] * len(fine)})
    write_pickle(folder / "meta", {"fine_label_names": [str(i) for i in range(100)]})
    test = load_images("cifar100", tmp_path, split="test")
    np.testing.assert_array_equal(test.images, IMAGES[20:])
    np.testing.assert_array_equal(test.labels, LABELS[20:] * 7)
    assert len(test.class_names) == 100


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["test_batch", "data_batch_1", "batches.meta"])
def test_files_with_another_md5_are_not_unpickled(tmp_path, name):
    write_cifar10(tmp_path)
    marker = tmp_path / "marker"
    write_pickle(tmp_path / "cifar-10-batches-py" / name, Attack(marker))
    with pytest.raises(InvalidInputError, match=r"not those of CIFAR10: .* MD5 sum"):
        load_images("cifar10", tmp_path)
    assert not marker.exists()


def test_a_missing_file_is_an_error(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(InvalidInputError, match=r"cifar-100-python .* one is missing"):
        load_images("cifar100", tmp_path)


@pytest.mark.usefixtures("any_md5")
def test_nothing_is_downloaded_unless_asked(tmp_path, monkeypatch):
    downloads = []

    def download(dataset):
        downloads.append(dataset.root)
        write_cifar10(tmp_path)

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", download)
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py.*download=True"):
        load_images("cifar10", tmp_path)
    assert downloads == []
    assert len(load_images("cifar10", tmp_path, download=True).images) == 20
    assert downloads == [str(tmp_path)]


def test_splits_are_train_and_test(tmp_path):
    with pytest.raises(InvalidInputError, match=r"'train' or 'test', got 'val'"):
        load_images("cifar10", tmp_path, split="val")
