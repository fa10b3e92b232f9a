import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sklearn_sharpbalance.corruption import CorruptionFiles, read_image_folder
from sklearn_sharpbalance.corruption.pictures import cached_array
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.corruption.pictures import make_pictures


@pytest.fixture
def npy_root(tmp_path):
    """A small CIFAR-10-C: two kinds, five severities of four pictures."""
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 8, 8, 0], np.uint8), 5))
    for seed, name in enumerate(("fog", "snow")):
        np.save(tmp_path / f"{name}.npy", make_pictures(20, seed=seed))
    return tmp_path


@pytest.fixture
def tree_root(tmp_path):
    """A small Tiny-ImageNet-C: kind / severity / class / picture."""
    for kind in ("frost", "contrast"):
        for severity in range(1, 6):
            for wnid in ("n02", "n01"):
                folder = tmp_path / "set" / kind / str(severity) / wnid
                folder.mkdir(parents=True)
                for k in range(2):
                    value = 100 * (wnid == "n02") + 10 * severity + k
                    picture = np.full((16, 16, 3), value, dtype=np.uint8)
                    Image.fromarray(picture).save(folder / f"val_{k}.JPEG", quality=95)
    return tmp_path / "set"


def test_npy_files_are_memory_mapped_by_severity(npy_root):
    files = CorruptionFiles(npy_root)
    assert files.names == ("fog", "snow")
    images, labels = files["snow", 3]
    assert isinstance(images, np.memmap)
    np.testing.assert_array_equal(images, make_pictures(20, seed=1)[8:12])
    np.testing.assert_array_equal(labels, [3, 8, 8, 0])
    assert labels.dtype == np.int64


def test_extra_kinds_need_extra_true(npy_root):
    shutil.copy(npy_root / "fog.npy", npy_root / "saturate.npy")
    files = CorruptionFiles(npy_root)
    assert files.names == ("fog", "snow")
    with pytest.raises(KeyError, match="extra=True"):
        files["saturate", 1]
    more = CorruptionFiles(npy_root, extra=True)
    assert more.names == ("fog", "saturate", "snow")
    np.testing.assert_array_equal(more["saturate", 2][0], files["fog", 2][0])


def test_iteration_is_over_kinds_and_severities(npy_root):
    files = CorruptionFiles(npy_root)
    assert len(files) == 10
    assert list(files)[:2] == [("fog", 1), ("fog", 2)]
    assert all(len(images) == len(labels) == 4 for images, labels in files.values())
    assert ("fog", 5) in files
    assert ("rain", 5) not in files


def test_a_tree_is_decoded_with_labels_by_sorted_classes(tree_root):
    files = CorruptionFiles(tree_root)
    assert files.names == ("contrast", "frost")
    assert files.class_names == ("n01", "n02")
    images, labels = files["frost", 2]
    assert images.shape == (4, 16, 16, 3)
    np.testing.assert_array_equal(labels, [0, 0, 1, 1])
    np.testing.assert_allclose(images[:, 8, 8, 0], [20, 21, 120, 121], atol=1)


def test_a_tree_is_cached_until_it_changes(tree_root, tmp_path):
    cache = tmp_path / "cache"
    files = CorruptionFiles(tree_root, cache_dir=cache)
    first, _ = files["frost", 4]
    assert isinstance(first, np.memmap)
    (kept,) = cache.iterdir()
    assert kept.name.startswith("frost-4-")
    marked = np.array(first)
    marked[:] = 7
    np.save(kept, marked)
    assert (files["frost", 4][0] == 7).all()
    changed = tree_root / "frost" / "4" / "n01"
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(changed / "more.png")
    again, labels = files["frost", 4]
    assert len(again) == len(labels) == 5
    assert not (again == 7).any()
    Image.fromarray(np.full((16, 16), 9, np.uint8)).save(changed / "more.png")
    os.utime(changed / "more.png", ns=(0, 0))
    assert (files["frost", 4][0] == 9).any()
    assert len(list(cache.iterdir())) == 1  # the outdated file is deleted


def test_two_trees_may_share_a_cache(tree_root, tmp_path):
    other = tmp_path / "other" / tree_root.name
    shutil.copytree(tree_root, other)
    for path in filter(Path.is_file, other.rglob("*")):
        Image.fromarray(np.full((16, 16), 3, np.uint8)).save(path)
    own, copied = (
        CorruptionFiles(root, cache_dir=tmp_path / "cache")
        for root in (tree_root, other)
    )
    assert own["frost", 2][0].max() > 100
    np.testing.assert_allclose(copied["frost", 2][0], 3, atol=1)


def test_a_missing_folder_raises_with_the_download(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no folder .*zenodo\.org/records/2535967"
    ):
        CorruptionFiles(tmp_path / "CIFAR-10-C")
    with pytest.raises(FileNotFoundError, match=r"contains neither labels\.npy"):
        CorruptionFiles(tmp_path)


def test_bad_keys_raise(npy_root):
    files = CorruptionFiles(npy_root)
    with pytest.raises(KeyError, match=r"No corruption 'rain' .* Found fog, snow"):
        files["rain", 1]
    with pytest.raises(KeyError, match=r"severity 1 to 5, got \('fog', 0\)"):
        files["fog", 0]


def test_files_of_unequal_length_raise(npy_root):
    np.save(npy_root / "fog.npy", make_pictures(15))
    with pytest.raises(
        InvalidInputError, match=r"contains 15 pictures and labels\.npy 20"
    ):
        CorruptionFiles(npy_root)["fog", 1]


def test_pictures_of_unequal_size_raise(tmp_path):
    (tmp_path / "a").mkdir()
    for k, side in enumerate((8, 9)):
        picture = np.zeros((side, side, 3), np.uint8)
        Image.fromarray(picture).save(tmp_path / "a" / f"{k}.png")
    with pytest.raises(InvalidInputError, match=r"1\.png is 9 x 9 pixels, .* 8 x 8"):
        read_image_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"contains no folders of pictures"):
        read_image_folder(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"There is no folder"):
        read_image_folder(tmp_path / "b")


def test_hidden_files_and_folders_are_ignored(npy_root, tree_root):
    (npy_root / "._fog.npy").write_bytes(b"\0\5\x16\7")
    assert CorruptionFiles(npy_root).names == ("fog", "snow")
    first = tree_root / "contrast" / "1"
    (first / ".ipynb_checkpoints").mkdir()
    (first / "n01" / "._val_0.JPEG").write_bytes(b"\0\5\x16\7")
    files = CorruptionFiles(tree_root)
    assert files.class_names == ("n01", "n02")
    np.testing.assert_array_equal(files["contrast", 1][1], [0, 0, 1, 1])


def test_damaged_files_raise(npy_root, tree_root):
    content = (npy_root / "fog.npy").read_bytes()
    (npy_root / "fog.npy").write_bytes(content[:-1])
    with pytest.raises(InvalidInputError, match=r"fog\.npy cannot be read as an array"):
        CorruptionFiles(npy_root)["fog", 1]
    (npy_root / "labels.npy").write_bytes(b"")
    with pytest.raises(InvalidInputError, match=r"labels\.npy cannot be read"):
        CorruptionFiles(npy_root)
    path = tree_root / "frost" / "1" / "n02" / "val_1.JPEG"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInputError, match=r"n02.val_1\.JPEG cannot be decoded"):
        CorruptionFiles(tree_root)["frost", 1]


def test_pictures_of_16_bits_are_scaled(tmp_path):
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / "0.png")
    raw = b"P5 8 8 65535\n" + values.astype(">u2").tobytes()
    (tmp_path / "a" / "1.pgm").write_bytes(raw)
    images, _, _ = read_image_folder(tmp_path)
    for image in images:
        expected = np.repeat((values // 256)[..., None], 3, axis=-1)
        np.testing.assert_array_equal(image, expected)


def test_pictures_of_32_bits_are_not_scaled(tmp_path):
    """As in torchvision: a TIFF file has no range to scale from."""
    values = np.arange(0, 320, 5, dtype=np.int32).reshape(8, 8)
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / "0.tiff")
    images, _, _ = read_image_folder(tmp_path)
    np.testing.assert_array_equal(images[0, ..., 1], np.minimum(values, 255))


def fill_with(value):
    return lambda out: out.fill(value)


def test_the_last_writer_of_a_cache_file_wins(tmp_path):
    path = tmp_path / "kept.npy"

    def slow(out):
        out[:2] = 7
        other = cached_array(path, (4, 3), fill_with(7))  # another writer is faster
        assert (other == 7).all()
        out[2:] = 7

    kept = cached_array(path, (4, 3), slow)
    np.testing.assert_array_equal(kept, np.full((4, 3), 7))
    assert [p.name for p in tmp_path.iterdir()] == ["kept.npy"]


def test_an_interrupted_write_leaves_no_file(tmp_path):
    def fail(out):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_array(tmp_path / "kept.npy", (4, 3), fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n_bytes", [0, 60, 130])
def test_a_damaged_cache_file_is_replaced(tmp_path, n_bytes):
    path = tmp_path / "kept.npy"
    cached_array(path, (4, 3), fill_with(1))
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert (cached_array(path, (4, 3), fill_with(2)) == 2).all()
    assert (cached_array(path, (4, 3), fill_with(3)) == 2).all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.full(20, 0.5), r"whole numbers, got float64 of shape \(20,\)"),
        (np.full(20, np.nan), r"whole numbers, got float64 of shape \(20,\)"),
        (np.full(20, np.inf), r"whole numbers, got float64 of shape \(20,\)"),
        (np.full(20, "cat"), r"whole numbers, got <U3 of shape \(20,\)"),
    ],
)
def test_labels_that_are_no_whole_numbers_raise(npy_root, labels, message):
    np.save(npy_root / "labels.npy", labels)
    with pytest.raises(InvalidInputError, match=rf"labels\.npy must contain {message}"):
        CorruptionFiles(npy_root)


def test_labels_may_be_a_column_of_floats(npy_root):
    labels = np.load(npy_root / "labels.npy")
    np.save(npy_root / "labels.npy", labels[:, None].astype(float))
    read = CorruptionFiles(npy_root)["fog", 1][1]
    assert read.dtype == np.int64
    np.testing.assert_array_equal(read, labels[:4])


@pytest.mark.parametrize("name", ["labels", "fog"])
def test_archives_named_npy_raise(npy_root, name):
    np.savez(npy_root / "more.npz", a=make_pictures(20))
    (npy_root / "more.npz").rename(npy_root / f"{name}.npy")
    with pytest.raises(InvalidInputError, match=rf"{name}\.npy cannot be read as an a"):
        CorruptionFiles(npy_root)["fog", 1]


def test_a_file_with_a_single_number_raises(npy_root):
    np.save(npy_root / "fog.npy", np.uint8(3))
    with pytest.raises(InvalidInputError, match=r"contains 1 pictures .*\.npy 20"):
        CorruptionFiles(npy_root)["fog", 1]


@pytest.mark.parametrize("severity", [np.array([1, 2]), [1], None])
def test_bad_severities_of_any_type_raise(npy_root, severity):
    with pytest.raises(KeyError, match=r"severity 1 to 5, got"):
        CorruptionFiles(npy_root)["fog", severity]


def test_a_class_missing_in_one_folder_keeps_its_number(tree_root):
    shutil.rmtree(tree_root / "contrast" / "1" / "n01")
    files = CorruptionFiles(tree_root)
    assert files.class_names == ("n01", "n02")
    np.testing.assert_array_equal(files["contrast", 1][1], [1, 1])
    np.testing.assert_array_equal(files["frost", 1][1], [0, 0, 1, 1])


def test_class_names_may_be_an_array(tree_root):
    names = np.array(["n02", "n01"])
    images, labels, found = read_image_folder(
        tree_root / "frost" / "1", class_names=names
    )
    assert found == ["n02", "n01"]
    np.testing.assert_array_equal(labels, [0, 0, 1, 1])
    assert images[0].mean() > images[2].mean()


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_a_cache_file_of_another_dtype_is_replaced(tmp_path, save):
    with (tmp_path / "kept.npy").open("wb") as file:
        save(file, np.ones((4, 3)))
    kept = cached_array(tmp_path / "kept.npy", (4, 3), fill_with(2))
    assert kept.dtype == np.uint8
    assert (kept == 2).all()
