"""Picture datasets in one npz file."""

import numpy as np
import pytest

from sklearn_sharpbalance.datasets import load_images
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.datasets.cases import IMAGES, LABELS


def test_splits_of_both_layouts(tmp_path):
    is_test = np.arange(30) >= 20
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    np.savez(one, images=IMAGES, labels=LABELS, is_test=is_test)
    np.savez(
        two,
        x_train=IMAGES[:20],
        y_train=LABELS[:20, None],
        x_test=IMAGES[20:],
        y_test=LABELS[20:, None],
    )
    for path in (one, two):
        for split, rows in (
            ("train", ~is_test),
            ("test", is_test),
            ("all", slice(None)),
        ):
            images, labels = load_images("npz", path, split=split, return_X_y=True)
            np.testing.assert_array_equal(images, IMAGES[rows])
            np.testing.assert_array_equal(labels, LABELS[rows])


def test_a_file_without_is_test_has_no_test_split(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    for split in ("train", "all"):
        np.testing.assert_array_equal(
            load_images("npz", path, split=split).images, IMAGES
        )
    with pytest.raises(
        InvalidInputError,
        match=r"not say which of its pictures .* an array is_test",
    ):
        load_images("npz", path, split="test")


def test_labels_of_other_splits_are_not_checked(tmp_path):
    """Test pictures often have no labels, but -1."""
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES[:4], labels=[1, 0, -1, -1], is_test=[0, 0, 1, 1])
    np.testing.assert_array_equal(load_images("npz", path).labels, [1, 0])
    with pytest.raises(InvalidInputError, match=r"numbered from 0, got -1 to -1"):
        load_images("npz", path, split="test")


@pytest.mark.parametrize("names", [["cat", "dog"], [b"cat", b"dog"], [[7], [8]]])
def test_class_names_are_strings(tmp_path, names):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES[:2], labels=[0, 1], class_names=np.array(names))
    expected = ["7", "8"] if names[0] == [7] else ["cat", "dog"]
    assert load_images("npz", path).class_names == expected


@pytest.mark.parametrize("mapped", [True, np.True_])
def test_the_cache_is_beside_a_file_without_a_suffix(tmp_path, mapped):
    path = tmp_path / "pictures"
    with path.open("wb") as file:
        np.savez(file, images=IMAGES, labels=LABELS)
    images = load_images("npz", path, mmap=mapped).images
    assert isinstance(images, np.memmap)
    np.testing.assert_array_equal(images, IMAGES)
    assert len(list((tmp_path / "decoded").glob("pictures-train-*.npy"))) == 1


def test_files_without_uint8_pictures_raise(tmp_path):
    path = tmp_path / "set.npz"
    with pytest.raises(FileNotFoundError, match=r"There is no file .*set\.npz"):
        load_images("npz", path)
    np.savez(path, images=IMAGES / 255.0, labels=LABELS)
    with pytest.raises(InvalidInputError, match=r"must be uint8 .* got float64"):
        load_images("npz", path)
    np.savez(path, pictures=IMAGES)
    with pytest.raises(InvalidInputError, match=r"the arrays pictures; expected"):
        load_images("npz", path)


@pytest.mark.parametrize(
    ("arrays", "split", "message"),
    [
        ({"images": IMAGES[:2], "labels": [0, 1, 1]}, "all", "3 labels for 2 pictures"),
        (
            {"images": IMAGES[:2], "labels": [-1, 1]},
            "all",
            "numbered from 0, got -1 to 1",
        ),
        (
            {"images": IMAGES[:2], "labels": [0, 2], "class_names": ["x", "y"]},
            "all",
            "numbered from 0 to 1, the number of class_names - 1, got 0 to 2",
        ),
        (
            {"images": IMAGES[:2], "labels": ["cat", "dog"]},
            "all",
            r"whole numbers from 0, got \['cat', 'dog'\] of <U3\. Number the classes",
        ),
        ({"images": IMAGES[:2], "labels": [0.5, 1]}, "all", r"whole numbers from 0"),
        (
            {"images": IMAGES[:2], "labels": [0, 1], "is_test": [True]},
            "train",
            r"is_test .* one bool per picture, got 1 for 2 pictures",
        ),
        (
            {"x_train": IMAGES[:2], "y_train": [0, 1]},
            "test",
            r"Missing for this split: x_test, y_test",
        ),
    ],
)
def test_arrays_that_do_not_match_raise(tmp_path, arrays, split, message):
    path = tmp_path / "set.npz"
    np.savez(path, **arrays)
    with pytest.raises(InvalidInputError, match=message):
        load_images("npz", path, split=split)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [0, np.inf]}, r"whole numbers from 0, got \[0\.0, inf\]"),
        ({"labels": [0, 2**40]}, r"got 0 to 1099511627776\. Renumber them"),
        ({"is_test": ["False", "True"]}, r"is_test in .* bool per picture, got <U5"),
        ({"is_test": [0, 2]}, r"is_test in .* bool per picture, got int64 .* 0 to 2"),
        ({"labels": 3, "is_test": [0, 1]}, r"one label per picture, got 1 labels for"),
        (
            {"images": np.uint8(3), "is_test": [0, 1]},
            r"must be uint8 of shape \(N, H, W, C\)",
        ),
    ],
)
def test_bad_values_raise(tmp_path, arrays, message):
    path = tmp_path / "set.npz"
    np.savez(path, **{"images": IMAGES[:2], "labels": [0, 1], **arrays})
    with pytest.raises(InvalidInputError, match=message):
        load_images("npz", path)


@pytest.mark.parametrize(
    ("y_train", "x_test", "message"),
    [
        (
            [0, 1],
            IMAGES[:2, :16],
            r"x_train and x_test .* got \(32, 32, 3\) and \(16, 32, 3\)",
        ),
        ([0], IMAGES[:1], "got 1 labels for 2 pictures"),
    ],
)
def test_train_and_test_that_do_not_match_raise(tmp_path, y_train, x_test, message):
    """Also if one part lacks as many labels as the other has too many."""
    path = tmp_path / "set.npz"
    np.savez(path, x_train=IMAGES[:2], y_train=y_train, x_test=x_test, y_test=[0, 1])
    with pytest.raises(InvalidInputError, match=message):
        load_images("npz", path, split="all")


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\3\4 no archive"])
def test_a_file_of_another_format_raises(tmp_path, content):
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"set\.npz cannot be read as an \.npz"):
        load_images("npz", path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_raises(tmp_path, save):
    path = tmp_path / "set.npz"
    save(path, images=IMAGES, labels=LABELS)
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"set\.npz cannot be read as an \.npz"):
        load_images("npz", path)


def test_arrays_of_objects_raise(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES, labels=LABELS.astype(object))
    with pytest.raises(InvalidInputError, match=r"set\.npz cannot .*Object arrays"):
        load_images("npz", path)


def test_a_single_array_raises(tmp_path):
    np.save(tmp_path / "set.npy", IMAGES)
    with pytest.raises(
        InvalidInputError, match=r"set\.npy contains one array and no label"
    ):
        load_images("npz", tmp_path / "set.npy")
