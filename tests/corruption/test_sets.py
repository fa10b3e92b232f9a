"""The files of the published datasets."""

import shutil

import numpy as np
import pytest
from PIL import Image

from sklearn_sharpbalance.corruption import CorruptionFiles
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import make_images


@pytest.fixture
def npy_root(tmp_path):
    """A small CIFAR-10-C: two kinds, five severities of four images."""
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 8, 8, 0], np.uint8), 5))
    for seed, name in enumerate(("fog", "snow")):
        np.save(tmp_path / f"{name}.npy", make_images(20, seed=seed))
    return tmp_path


@pytest.fixture
def tree_root(tmp_path):
    """A small Tiny-ImageNet-C: kind / severity / class / image."""
    for kind in ("frost", "contrast"):
        for severity in range(1, 6):
            for wnid in ("n02", "n01"):
                folder = tmp_path / "set" / kind / str(severity) / wnid
                folder.mkdir(parents=True)
                for k in range(2):
                    value = 100 * (wnid == "n02") + 10 * severity + k
                    image = Image.fromarray(np.full((16, 16, 3), value, np.uint8))
                    image.save(folder / f"val_{k}.JPEG", quality=95)
    return tmp_path / "set"


@pytest.mark.parametrize("as_column_of_floats", [False, True])
def test_npy_files_are_memory_mapped_by_severity(npy_root, as_column_of_floats):
    if as_column_of_floats:
        column = np.load(npy_root / "labels.npy")[:, None].astype(float)
        np.save(npy_root / "labels.npy", column)
    files = CorruptionFiles(npy_root)
    assert files.names == ("fog", "snow")
    images, labels = files["snow", 3]
    assert isinstance(images, np.memmap)
    np.testing.assert_array_equal(images, make_images(20, seed=1)[8:12])
    np.testing.assert_array_equal(labels, [3, 8, 8, 0])
    assert labels.dtype == np.int64


def test_iteration_is_over_kinds_and_severities(npy_root):
    files = CorruptionFiles(npy_root)
    assert len(files) == 10
    assert list(files)[:2] == [("fog", 1), ("fog", 2)]
    assert all(len(images) == len(labels) == 4 for images, labels in files.values())
    assert ("fog", 5) in files
    assert ("rain", 5) not in files


def test_a_tree_is_decoded_with_labels_by_sorted_classes(tree_root):
    shutil.rmtree(tree_root / "contrast" / "1" / "n01")
    files = CorruptionFiles(tree_root)
    assert files.names == ("contrast", "frost")
    assert files.class_names == ("n01", "n02")
    images, labels = files["frost", 2]
    assert images.shape == (4, 16, 16, 3)
    np.testing.assert_array_equal(labels, [0, 0, 1, 1])
    np.testing.assert_allclose(images[:, 8, 8, 0], [20, 21, 120, 121], atol=1)
    # A class has one number, even where another class is missing.
    np.testing.assert_array_equal(files["contrast", 1][1], [1, 1])


def test_hidden_files_and_kinds_for_tuning_are_ignored(npy_root, tree_root):
    (npy_root / "._fog.npy").write_bytes(b"\0\5\x16\7")
    shutil.copy(npy_root / "fog.npy", npy_root / "saturate.npy")
    assert CorruptionFiles(npy_root).names == ("fog", "snow")
    first = tree_root / "contrast" / "1"
    (first / ".ipynb_checkpoints").mkdir()
    (first / "n01" / "._val_0.JPEG").write_bytes(b"\0\5\x16\7")
    files = CorruptionFiles(tree_root)
    assert files.class_names == ("n01", "n02")
    np.testing.assert_array_equal(files["contrast", 1][1], [0, 0, 1, 1])


def test_a_missing_folder_raises_with_the_download(tmp_path):
    for folder in (tmp_path / "CIFAR-10-C", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"zenodo\.org/records/2535967"):
            CorruptionFiles(folder)


@pytest.mark.parametrize(
    "key", [("rain", 1), ("fog", 0), ("fog", np.array([1, 2])), ("fog", [1]), "fog"]
)
def test_bad_keys_raise(npy_root, key):
    with pytest.raises(KeyError, match=r"Found fog, snow|severity 1 to 5"):
        CorruptionFiles(npy_root)[key]


@pytest.mark.parametrize("content", [make_images(15), np.uint8(3)])
def test_files_of_unequal_length_raise(npy_root, content):
    np.save(npy_root / "fog.npy", content)
    with pytest.raises(InvalidInputError, match=r"fog\.npy contains .*20 labels"):
        CorruptionFiles(npy_root)["fog", 1]


@pytest.mark.parametrize("name", ["labels", "fog"])
@pytest.mark.parametrize("damage", ["cut", "empty", "archive"])
def test_damaged_files_raise(npy_root, name, damage):
    path = npy_root / f"{name}.npy"
    if damage == "archive":
        np.savez(npy_root / "more.npz", a=make_images(20))
        (npy_root / "more.npz").rename(path)
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else b"")
    with pytest.raises(InvalidInputError, match=rf"{name}\.npy cannot be read"):
        CorruptionFiles(npy_root)["fog", 1]


def test_a_damaged_image_raises(tree_root):
    path = tree_root / "frost" / "1" / "n02" / "val_1.JPEG"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInputError, match=r"n02.val_1\.JPEG cannot be decoded"):
        CorruptionFiles(tree_root)["frost", 1]


@pytest.mark.parametrize("label", [0.5, np.nan, np.inf, "cat"])
def test_labels_that_are_no_whole_numbers_raise(npy_root, label):
    np.save(npy_root / "labels.npy", np.full(20, label))
    with pytest.raises(InvalidInputError, match=r"labels\.npy must contain whole num"):
        CorruptionFiles(npy_root)
