"""What all readers of load_images have in common."""

import time

import numpy as np
import pytest

from sklearn_sharpbalance.datasets import DATASETS, load_images
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.datasets.cases import IMAGES, LABELS, write_dataset, write_grey


def test_a_cache_file_is_reused_until_its_source_changes(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    first = load_images("npz", path, mmap=True).images
    assert isinstance(first, np.memmap)
    np.testing.assert_array_equal(first, IMAGES)
    (stored,) = (tmp_path / "decoded").glob("set-train-*.npy")
    made = stored.stat().st_mtime_ns
    load_images("npz", path, mmap=True)
    assert stored.stat().st_mtime_ns == made
    time.sleep(0.02)
    np.savez(path, images=255 - IMAGES, labels=LABELS)
    again = load_images("npz", path, mmap=True).images
    np.testing.assert_array_equal(again, 255 - IMAGES)
    assert not stored.exists()  # the file of the old pictures is deleted
    assert not isinstance(load_images("npz", path).images, np.memmap)


@pytest.mark.usefixtures("any_md5")
@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("npz", "train"),
        ("cifar100", "train"),
        ("imagefolder", "train"),
        ("tiny-imagenet", "train"),
        ("tiny-imagenet-c", "fog/1"),
    ],
)
def test_datasets_of_one_name_may_share_a_cache_folder(tmp_path, name, split):
    options = {"split": split, "mmap": True, "cache_dir": tmp_path / "cache"}
    roots = {v: write_dataset(name, tmp_path / str(v), v) for v in (10, 200)}
    for _ in range(2):  # the second time from the cache
        for value, root in roots.items():
            images = load_images(name, root, **options).images
            assert isinstance(images, np.memmap)
            assert np.unique(images).tolist() == [value]
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("name", ["imagefolder", "tiny-imagenet"])
def test_changed_pictures_are_decoded_again(tmp_path, name):
    root = write_dataset(name, tmp_path / "set", 10)
    write_grey(root / "train" / "x" / "1.png", 50)
    first = load_images(name, root, mmap=True).images
    write_grey(root / "train" / "x" / "0.png", 99)
    second = load_images(name, root, mmap=True)
    assert second.images[:, 0, 0, 0].tolist() == [99, 50, 10]
    assert first[0, 0, 0, 0] == 10  # an array that is in use does not change
    # The number of pictures stays, but one is moved to another class.
    (root / "train" / "x" / "0.png").rename(root / "train" / "y" / "1.png")
    moved = load_images(name, root, mmap=True)
    assert moved.images[:, 0, 0, 0].tolist() == [50, 10, 99]
    assert moved.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"npz"}))
def test_a_missing_dataset_raises(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no"):
        load_images(name, tmp_path / "nowhere", split="train")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "mnist"}, r"Unknown dataset 'mnist'\. Choose one of 'cifar10'"),
        ({"name": "npz", "download": True}, r"cifar100 only, got 'npz'"),
        ({"mmap": "r"}, r"mmap must be True, False or 'auto', got 'r'"),
        ({"split": "val"}, r"split must be 'train', 'test' or 'all', got 'val'"),
    ],
)
def test_bad_arguments_raise(tmp_path, call, message):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    with pytest.raises(InvalidInputError, match=message):
        load_images(**{"name": "npz", "root": path, **call})
