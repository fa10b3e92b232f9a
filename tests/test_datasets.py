"""Folders of image files, and files that are damaged or hostile."""

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from sklearn_sharpbalance.datasets import load_images
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import make_images


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def write_tree(root, classes, values=(0, 40)):
    for name in classes:
        for value in values:
            write(root / name / f"{value}.png", np.full((8, 10, 3), value, np.uint8))


def test_images_equal_those_of_torchvision(tmp_path):
    """For every suffix that it knows; an orientation in EXIF data is not applied."""
    (tmp_path / "x").mkdir()
    for i, (suffix, image) in enumerate(zip(IMG_EXTENSIONS, make_images(9))):
        original = Image.fromarray(image)
        turned = original.getexif()
        turned[0x0112] = 6  # orientation: rotated by 90 degrees
        mode = "L" if suffix == ".pgm" else "RGB"
        original.convert(mode).save(tmp_path / "x" / f"{i}{suffix}", exif=turned)
    original.convert("CMYK").save(tmp_path / "x" / "ink.tif")
    write_tree(tmp_path, ["y/nested", "z"])
    theirs = ImageFolder(tmp_path)
    images, labels = load_images(str(tmp_path), size=32)
    for image, (original, _) in zip(images, theirs, strict=True):
        resized = original.resize((32, 32), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(image, np.asarray(resized))
    assert labels.tolist() == [theirs.classes[code] for code in theirs.targets]


@pytest.mark.parametrize(
    ("size", "shape"), [(None, (8, 10)), (16, (16, 16)), ((4, 6), (4, 6))]
)
def test_size_is_that_of_the_files_a_side_or_height_and_width(tmp_path, size, shape):
    write_tree(tmp_path, ["cat", "dog"])
    images, labels = load_images(tmp_path, size=size)
    assert images.shape == (4, *shape, 3)
    assert images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [0, 40, 0, 40]
    assert labels.tolist() == ["cat", "cat", "dog", "dog"]


def test_files_of_several_sizes_need_a_size(tmp_path):
    write_tree(tmp_path, ["a"])
    write(tmp_path / "a" / "z.png", np.zeros((9, 9, 3), np.uint8))
    with pytest.raises(InvalidInputError, match=r"z\.png has 9 x 9 .* 8 x 10.*size="):
        load_images(tmp_path)
    assert load_images(tmp_path, size=8)[0].shape == (3, 8, 8, 3)


@pytest.mark.parametrize("size", [0, -1, 2.5, (8, 8, 3), (8, 0)])
def test_a_bad_size_raises(tmp_path, size):
    write_tree(tmp_path, ["a"])
    with pytest.raises(InvalidInputError, match="size"):
        load_images(tmp_path, size=size)


def test_folders_without_images_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_images(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=r"no image.*\.webp"):
        load_images(tmp_path)
    write_tree(tmp_path, ["ant"])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "of.txt").write_text("no image")
    with pytest.raises(FileNotFoundError, match="notes"):
        load_images(tmp_path)


def test_hidden_files_and_folders_are_ignored(tmp_path):
    root = tmp_path / ".hidden"  # the root may be
    write_tree(root, ["x"])
    (root / ".ipynb_checkpoints").mkdir()
    (root / "x" / "._0.png").write_bytes(b"\0\5\x16\7")
    assert load_images(root)[1].tolist() == ["x", "x"]


def test_links_to_folders_are_followed_at_any_depth(tmp_path):
    write_tree(tmp_path / "store", ["x", "y"])
    write_tree(tmp_path / "set", ["x"], [7])
    for link in ("x/more", "y"):
        target = tmp_path / "store" / link[0]
        (tmp_path / "set" / link).symlink_to(target, target_is_directory=True)
    assert load_images(tmp_path / "set")[1].tolist() == ["x", "x", "x", "y", "y"]


def test_images_of_16_bits_are_scaled(tmp_path):
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    write(tmp_path / "a" / "0.png", values)
    raw = b"P5 8 8 65535\n" + values.astype(">u2").tobytes()
    (tmp_path / "a" / "1.pgm").write_bytes(raw)
    for image in load_images(tmp_path)[0]:
        expected = np.repeat((values // 256)[..., None], 3, axis=-1)
        np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("damage", ["text", "cut", "huge"])
def test_files_that_cannot_be_decoded_raise(tmp_path, damage):
    path = tmp_path / "a" / "b.bmp"
    write(path, make_images(1)[0])
    content = bytearray(path.read_bytes())
    if damage == "huge":
        content[18:26] = b"\xff\xff\xff\0" * 2  # width and height
    path.write_bytes({"text": b"none", "cut": content[:-20], "huge": content}[damage])
    with pytest.raises(InvalidInputError, match=r"b\.bmp cannot be decoded"):
        load_images(tmp_path)
