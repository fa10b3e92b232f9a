"""Tiny-ImageNet, image folders and the published corrupted datasets."""

import numpy as np
import pytest
from PIL import Image

from sklearn_sharpbalance.datasets import load_images
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.datasets.cases import IMAGES, LABELS, write_grey, write_tree


def test_tiny_imagenet_reads_train_folders_and_val_annotations(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    write_tree(root / "train", ["n1", "n2", "n3"], 2, "images")
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for k, wnid in enumerate(("n3", "n1")):
        grey = Image.fromarray(np.full((16, 16), 90 + k, np.uint8))
        grey.save(root / "val" / "images" / f"val_{k}.JPEG")
        lines.append(f"val_{k}.JPEG\t{wnid}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    train = load_images("tiny-imagenet", tmp_path)
    np.testing.assert_array_equal(train.labels, [0, 0, 1, 1, 2, 2])
    assert train.images.shape == (6, 16, 16, 3)
    assert train.images[4, 0, 0, 0] == pytest.approx(80, abs=1)
    test = load_images("tiny-imagenet", root, split="test")
    np.testing.assert_array_equal(test.labels, [2, 0])
    np.testing.assert_allclose(test.images[:, 0, 0, 2], [90, 91], atol=1)
    assert test.class_names == ["n1", "n2", "n3"]


def test_tiny_imagenet_ignores_hidden_folders(tmp_path):
    write_tree(tmp_path / "train", ["n1", "n2"], 1, "images")
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    assert load_images("tiny-imagenet", tmp_path).class_names == ["n1", "n2"]


def test_empty_lines_of_annotations_are_ignored(tmp_path):
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
def test_bad_annotations_raise(tmp_path, text, message):
    write_tree(tmp_path / "train", ["n1", "n2"], 1)
    write_tree(tmp_path / "val", ["images"], 1)
    (tmp_path / "val" / "val_annotations.txt").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_images("tiny-imagenet", tmp_path, split="test")


def test_image_folders_may_have_one_folder_per_split(tmp_path):
    write_tree(tmp_path / "train", ["cat", "dog"], 3)
    write_tree(tmp_path / "test", ["cat", "dog"], 1)
    assert len(load_images("imagefolder", tmp_path).images) == 6
    assert len(load_images("imagefolder", tmp_path, split="test").images) == 2
    whole = load_images("imagefolder", tmp_path / "train", split="train")
    assert whole.class_names == ["cat", "dog"]
    np.testing.assert_array_equal(whole.labels, [0, 0, 0, 1, 1, 1])


def test_an_unknown_split_raises_with_the_splits_found(tmp_path):
    for split in ("train", "val"):
        write_tree(tmp_path / split, ["cat", "dog"], 1)
    with pytest.raises(
        InvalidInputError,
        match=r"no split 'test' in .*, only 'train', 'val'\.",
    ):
        load_images("imagefolder", tmp_path, split="test")
    with pytest.raises(InvalidInputError, match=r"such as 'train', got None"):
        load_images("imagefolder", tmp_path, split=None)


def test_a_class_may_be_named_like_a_split(tmp_path):
    write_tree(tmp_path, ["car", "train"], 1)
    whole = load_images("imagefolder", tmp_path, split="test")
    assert whole.class_names == ["car", "train"]
    with pytest.raises(
        InvalidInputError,
        match=r"train contains pictures, but .* if 'train' is a class, .* split='all'",
    ):
        load_images("imagefolder", tmp_path)
    whole = load_images("imagefolder", tmp_path, split="all")
    np.testing.assert_array_equal(whole.labels, [0, 1])


def test_a_class_has_the_same_number_in_all_splits(tmp_path):
    write_tree(tmp_path / "train", ["ant", "bee", "cat"], 1)
    write_tree(tmp_path / "test", ["ape", "cat", "ant"], 1)
    assert load_images("imagefolder", tmp_path).class_names == ["ant", "bee", "cat"]
    test = load_images("imagefolder", tmp_path, split="test")
    assert test.class_names == ["ant", "bee", "cat", "ape"]
    np.testing.assert_array_equal(test.labels, [0, 2, 3])


def test_hidden_files_and_the_cache_are_not_classes(tmp_path):
    write_tree(tmp_path, ["x", "y"], 1)
    load_images("imagefolder", tmp_path, mmap=True)  # writes into <root>/decoded
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / "x" / "._x_0.JPEG").write_bytes(b"\0\5\x16\7")
    whole = load_images("imagefolder", tmp_path, cache_dir=tmp_path.parent / "other")
    assert whole.class_names == ["x", "y"]
    np.testing.assert_array_equal(whole.labels, [0, 1])
    (tmp_path / "y" / "y_0.JPEG").write_bytes(b"none")
    with pytest.raises(InvalidInputError, match=r"y_0\.JPEG cannot be decoded"):
        load_images("imagefolder", tmp_path)


def test_the_cache_folder_is_not_a_class(tmp_path):
    for label in ("x", "y"):
        write_grey(tmp_path / label / "0.png", 10)
    for _ in range(2):
        whole = load_images("imagefolder", tmp_path, mmap=True)
        assert whole.class_names == ["x", "y"]
        assert whole.labels.tolist() == [0, 1]


def test_links_to_folders_are_followed_at_any_depth(tmp_path):
    write_tree(tmp_path / "store", ["x", "y"], 2)
    write_tree(tmp_path / "set", ["x"], 1)
    for link in ("x/more", "y"):
        target = tmp_path / "store" / link[0]
        (tmp_path / "set" / link).symlink_to(target, target_is_directory=True)
    whole = load_images("imagefolder", tmp_path / "set")
    np.testing.assert_array_equal(whole.labels, [0, 0, 0, 1, 1])


def test_folders_without_pictures_raise(tmp_path):
    for split in ("train", "test"):
        write_tree(tmp_path / split, ["ant", "bee"], 1)
    for split in ("train", "test"):
        (tmp_path / split / "notes").mkdir()
        (tmp_path / split / "notes" / "of.txt").write_text("no picture")
        with pytest.raises(
            FileNotFoundError, match=rf"{split} contains folders without .*: 'notes'"
        ):
            load_images("imagefolder", tmp_path, split=split)
        (tmp_path / split / "notes" / "of.txt").unlink()
        (tmp_path / split / "notes").rmdir()
    (tmp_path / "test" / "bee" / "bee_0.JPEG").unlink()  # a class that "train" has
    test = load_images("imagefolder", tmp_path, split="test")
    assert test.class_names == ["ant", "bee"]
    assert test.labels.tolist() == [0]


def test_pictures_equal_those_of_torchvision(tmp_path):
    """For every suffix that it knows; an orientation in EXIF data is not applied."""
    datasets = pytest.importorskip("torchvision.datasets")
    (tmp_path / "x").mkdir()
    for i, suffix in enumerate(datasets.folder.IMG_EXTENSIONS):
        picture = Image.fromarray(IMAGES[i])
        turned = picture.getexif()
        turned[0x0112] = 6  # orientation: rotated by 90 degrees
        mode = "L" if suffix == ".pgm" else "RGB"
        picture.convert(mode).save(tmp_path / "x" / f"{i}{suffix}", exif=turned)
    Image.fromarray(IMAGES[0]).convert("CMYK").save(tmp_path / "x" / "ink.tif")
    theirs = datasets.ImageFolder(tmp_path)
    ours = load_images("imagefolder", tmp_path)
    assert len(ours.images) == len(datasets.folder.IMG_EXTENSIONS) + 1
    for image, (picture, _) in zip(ours.images, theirs, strict=True):
        np.testing.assert_array_equal(image, np.asarray(picture))
    assert ours.labels.tolist() == theirs.targets


def test_a_picture_with_a_huge_size_raises(tmp_path):
    write_tree(tmp_path, ["a"], 1)
    path = tmp_path / "a" / "b.bmp"
    Image.fromarray(IMAGES[0]).save(path)
    content = bytearray(path.read_bytes())
    content[18:26] = b"\xff\xff\xff\0" * 2  # width and height
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"b\.bmp cannot be decoded \(Image si"):
        load_images("imagefolder", tmp_path)


@pytest.mark.parametrize("split", ["fog/2", ("fog", 2)])
def test_corrupted_cifar_is_read_by_kind_and_severity(tmp_path, split):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(LABELS[:6].astype(np.uint8), 5))
    np.save(folder / "fog.npy", IMAGES)
    bunch = load_images("cifar10-c", tmp_path, split=split)
    assert isinstance(bunch.images, np.memmap)
    np.testing.assert_array_equal(bunch.images, IMAGES[6:12])
    np.testing.assert_array_equal(bunch.labels, LABELS[:6])
    assert bunch.class_names[0] == "airplane"
    in_memory = load_images("cifar10-c", tmp_path, split=split, mmap=False)
    assert not isinstance(in_memory.images, np.memmap)
    hundred = load_images("cifar100-c", folder, split=split)
    assert hundred.class_names == [str(i) for i in range(LABELS[:6].max() + 1)]


@pytest.mark.parametrize("split", ["train", "fog/6", "rain/1", ("fog",), 3, None])
def test_a_split_that_is_no_kind_and_severity_raises(tmp_path, split):
    np.save(tmp_path / "labels.npy", np.zeros(5, np.uint8))
    np.save(tmp_path / "fog.npy", IMAGES[:5])
    with pytest.raises(
        InvalidInputError, match=r"such as 'fog/3', got .* Kinds here: fog"
    ):
        load_images("cifar10-c", tmp_path, split=split)


def test_corrupted_tiny_imagenet_is_decoded_into_the_cache(tmp_path):
    root = tmp_path / "Tiny-ImageNet-C"
    for severity in range(1, 6):
        write_tree(root / "snow" / str(severity), ["n1", "n2"], 1)
    cache = tmp_path / "cache"
    bunch = load_images(
        "tiny-imagenet-c", tmp_path, split="snow/5", mmap=True, cache_dir=cache
    )
    assert isinstance(bunch.images, np.memmap)
    assert len(list(cache.glob("tiny-imagenet-c-snow-5-*.npy"))) == 1
    assert bunch.class_names == ["n1", "n2"]


def test_mmap_may_be_a_numpy_bool(tmp_path):
    np.save(tmp_path / "labels.npy", np.tile(LABELS[:6].astype(np.uint8), 5))
    np.save(tmp_path / "fog.npy", IMAGES)
    bunch = load_images("cifar10-c", tmp_path, split="fog/2", mmap=np.False_)
    assert not isinstance(bunch.images, np.memmap)
