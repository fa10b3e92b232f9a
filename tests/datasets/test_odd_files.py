"""Sets that are damaged, or laid out in ways that the published ones are not."""

import pickle

import numpy as np
import pytest
from PIL import Image

from sklearn_sharpbalance.datasets import load_images
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.datasets.test_load_images import (
    IMAGES,
    LABELS,
    dump,
    pack,
    planes,
    write_cifar10,
    write_tree,
)


def flip_a_bit_of_the_pixels(content):
    # Protocol 2 keeps bytes as UTF-8, which most changed bytes are not.
    content[2000:2010] = b"\xff" * 10


def rename_a_module(content):
    start = content.index(b"multiarray")
    content[start : start + 10] = b"multiarrax"


@pytest.mark.parametrize("damage", [flip_a_bit_of_the_pixels, rename_a_module])
def test_pickles_with_changed_bytes_are_named(tmp_path, damage):
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)
    with pytest.raises(pickle.UnpicklingError, match=r"data_batch_3 cannot be read \("):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": planes(IMAGES[:2])}, "holds no 'labels'"),
        ({"labels": [1, 2]}, "holds no 'data'"),
        ([1, 2], "holds no 'data'"),
        (
            {"data": planes(IMAGES[:2]), "labels": [1, 2, 3]},
            "must hold 3072 bytes for each of its 3 labels",
        ),
        (
            {"data": planes(IMAGES[:2, :16]), "labels": [1, 2]},
            "must hold 3072 bytes for each of its 2 labels",
        ),
    ],
)
def test_pickles_of_another_set_are_named(tmp_path, content, message):
    write_cifar10(tmp_path)
    dump(tmp_path / "cifar-10-batches-py" / "test_batch", content)
    with pytest.raises(InvalidInputError, match=rf"test_batch {message}"):
        load_images("cifar10", tmp_path, split="test")
    assert len(load_images("cifar10", tmp_path).images) == 20


def test_pictures_that_claim_to_be_huge_are_named(tmp_path):
    write_tree(tmp_path, ["a"], 1)
    path = tmp_path / "a" / "b.bmp"
    Image.fromarray(IMAGES[0]).save(path)
    content = bytearray(path.read_bytes())
    content[18:26] = b"\xff\xff\xff\0" * 2  # width and height
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"b\.bmp cannot be decoded \(Image si"):
        load_images("imagefolder", tmp_path)


@pytest.mark.parametrize("names", [["cat", "dog"], [b"cat", b"dog"], [[7], [8]]])
def test_names_of_classes_are_strings(tmp_path, names):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES[:2], labels=[0, 1], class_names=np.array(names))
    expected = ["7", "8"] if names[0] == [7] else ["cat", "dog"]
    assert load_images("npz", path).class_names == expected


def test_names_of_packed_classes_are_strings(tmp_path):
    path = tmp_path / "packed.npz"
    pack(path, IMAGES[:4], LABELS[:4], np.zeros(4, bool))
    arrays = {**np.load(path), "class_names": np.arange(10)}
    np.savez(path, **arrays)
    assert load_images("npz", path).class_names == [str(i) for i in range(10)]


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
def test_faults_of_npz_files_are_named(tmp_path, arrays, message):
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
def test_parts_of_an_npz_file_fit_together(tmp_path, y_train, x_test, message):
    """Also where one part lacks as many labels as the other has too many."""
    path = tmp_path / "set.npz"
    np.savez(path, x_train=IMAGES[:2], y_train=y_train, x_test=x_test, y_test=[0, 1])
    with pytest.raises(InvalidInputError, match=message):
        load_images("npz", path, split="all")


def test_a_column_tells_the_split_of_packed_pictures(tmp_path):
    path = tmp_path / "packed.npz"
    pack(path, IMAGES[:4], LABELS[:4], np.array([[True], [False], [True], [False]]))
    assert len(load_images("npz", path, split="test").images) == 2


def test_annotations_of_tiny_imagenet_may_end_in_empty_lines(tmp_path):
    write_tree(tmp_path / "train", ["n1", "n2"], 1)
    write_tree(tmp_path / "val", ["images"], 1)
    annotations = tmp_path / "val" / "val_annotations.txt"
    annotations.write_text("images_0.JPEG\tn2\t0\t0\t1\t1\n\n")
    np.testing.assert_array_equal(
        load_images("tiny-imagenet", tmp_path, split="test").labels, [1]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("images_0.JPEG\tn9\n", r"val_annotations\.txt .* got 'images_0\.JPEG\\tn9'"),
        ("images_0.JPEG\n", r"val_annotations\.txt .* got 'images_0\.JPEG'"),
        ("\n", r"val_annotations\.txt names no pictures"),
    ],
)
def test_faults_of_the_annotations_of_tiny_imagenet_are_named(tmp_path, text, message):
    write_tree(tmp_path / "train", ["n1", "n2"], 1)
    write_tree(tmp_path / "val", ["images"], 1)
    (tmp_path / "val" / "val_annotations.txt").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_images("tiny-imagenet", tmp_path, split="test")


def test_labels_of_another_split_are_not_looked_at(tmp_path):
    """Pictures for tests often come without labels, numbered -1."""
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES[:4], labels=[1, 0, -1, -1], is_test=[0, 0, 1, 1])
    np.testing.assert_array_equal(load_images("npz", path).labels, [1, 0])
    with pytest.raises(InvalidInputError, match=r"count from 0, got -1 to -1"):
        load_images("npz", path, split="test")
