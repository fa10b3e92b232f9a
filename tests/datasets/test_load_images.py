"""Readers on small sets that the tests write in the published layouts."""

import io
import pickle
import time

import numpy as np
import pytest
from PIL import Image

from sklearn_sharpbalance.datasets import DATASETS, load_images
from sklearn_sharpbalance.exceptions import InvalidInputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 30)


def dump(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar10(root):
    folder = root / "cifar-10-batches-py"
    for i in range(5):
        rows = slice(4 * i, 4 * i + 4)
        batch = {"data": planes(IMAGES[rows]), "labels": LABELS[rows].tolist()}
        dump(folder / f"data_batch_{i + 1}", batch)
    dump(
        folder / "test_batch",
        {"data": planes(IMAGES[20:]), "labels": list(LABELS[20:])},
    )
    dump(folder / "batches.meta", {"label_names": [f"class {i}" for i in range(10)]})


def test_cifar10_is_read_from_the_pickles(tmp_path):
    write_cifar10(tmp_path)
    train = load_images("cifar10", tmp_path)
    test = load_images("cifar10", tmp_path / "cifar-10-batches-py", split="test")
    np.testing.assert_array_equal(train.images, IMAGES[:20])
    np.testing.assert_array_equal(train.labels, LABELS[:20])
    np.testing.assert_array_equal(test.images, IMAGES[20:])
    assert train.labels.dtype == np.int64
    assert train.class_names[3] == "class 3"


def test_cifar10_agrees_with_torchvision(tmp_path, monkeypatch):
    torchvision_datasets = pytest.importorskip("torchvision.datasets")
    write_cifar10(tmp_path)
    monkeypatch.setattr(
        torchvision_datasets.CIFAR10, "_check_integrity", lambda self: True
    )
    monkeypatch.setattr(
        torchvision_datasets.cifar, "check_integrity", lambda *args: True
    )
    theirs = torchvision_datasets.CIFAR10(str(tmp_path), train=True)
    images, labels = load_images("cifar10", tmp_path, return_X_y=True)
    np.testing.assert_array_equal(images, theirs.data)
    np.testing.assert_array_equal(labels, theirs.targets)


def test_cifar100_takes_the_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    for split, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
        fine = (LABELS[rows] * 7).tolist()
        coarse = [0] * len(fine)
        batch = {"data": planes(IMAGES[rows]), "fine_labels": fine}
        dump(folder / split, {**batch, "coarse_labels": coarse})
    dump(folder / "meta", {"fine_label_names": [str(i) for i in range(100)]})
    test = load_images("cifar100", tmp_path, split="test")
    np.testing.assert_array_equal(test.images, IMAGES[20:])
    np.testing.assert_array_equal(test.labels, LABELS[20:] * 7)
    assert len(test.class_names) == 100


def test_pickles_that_run_code_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("gotcha",)

    write_cifar10(tmp_path)
    dump(tmp_path / "cifar-10-batches-py" / "test_batch", {"data": Evil()})
    with pytest.raises(
        pickle.UnpicklingError, match=r"asks for .*print, which no picture"
    ):
        load_images("cifar10", tmp_path, split="test")


def test_nothing_is_downloaded_unless_asked(tmp_path, monkeypatch):
    torchvision_datasets = pytest.importorskip("torchvision.datasets")
    asked = []

    def fetch(root, download):
        asked.append((root, download))
        write_cifar10(tmp_path)

    monkeypatch.setattr(torchvision_datasets, "CIFAR10", fetch)
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py.*download=True"):
        load_images("cifar10", tmp_path)
    assert asked == []
    assert len(load_images("cifar10", tmp_path, download=True).images) == 20
    assert asked == [(str(tmp_path), True)]


def write_tree(folder, wnids, per_class, nested=""):
    for c, wnid in enumerate(wnids):
        (folder / wnid / nested).mkdir(parents=True)
        for k in range(per_class):
            value = 40 * c + k
            picture = Image.fromarray(np.full((16, 16, 3), value, np.uint8))
            picture.save(folder / wnid / nested / f"{wnid}_{k}.JPEG", quality=95)


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


def test_image_folder_with_and_without_splits(tmp_path):
    write_tree(tmp_path / "train", ["cat", "dog"], 3)
    write_tree(tmp_path / "test", ["cat", "dog"], 1)
    assert len(load_images("imagefolder", tmp_path).images) == 6
    assert len(load_images("imagefolder", tmp_path, split="test").images) == 2
    whole = load_images("imagefolder", tmp_path / "train", split="train")
    assert whole.class_names == ["cat", "dog"]
    np.testing.assert_array_equal(whole.labels, [0, 0, 0, 1, 1, 1])


def test_image_folder_without_the_split_names_those_it_has(tmp_path):
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
        match=r"train holds pictures, not .* if 'train' is a class, .* split='all'",
    ):
        load_images("imagefolder", tmp_path)
    whole = load_images("imagefolder", tmp_path, split="all")
    np.testing.assert_array_equal(whole.labels, [0, 1])


@pytest.mark.parametrize("split", ["fog/2", ("fog", 2)])
def test_corrupted_cifar_gives_one_kind_and_severity(tmp_path, split):
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
def test_corrupted_sets_want_kind_and_severity(tmp_path, split):
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


def pack(path, images, labels, is_test):
    streams = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=75)
        streams.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in streams])])
    names = np.array([f"class {i}" for i in range(10)])
    np.savez(
        path,
        jpeg=np.concatenate(streams),
        offsets=offsets,
        labels=labels.astype(np.uint8),
        is_test=is_test,
        class_names=names,
    )


def test_packed_jpeg_keeps_the_order_of_the_fixed_shuffle(tmp_path):
    path = tmp_path / "packed.npz"
    is_test = RNG.random(30) < 0.3
    pack(path, IMAGES, LABELS, is_test)
    with np.load(path) as z:
        decoded = np.stack(
            [
                np.asarray(Image.open(io.BytesIO(z["jpeg"][a:b].tobytes())))
                for a, b in zip(z["offsets"], z["offsets"][1:])
            ]
        )
    order = np.random.default_rng(0).permutation(30)
    shuffled, labels, held = decoded[order], LABELS[order], is_test[order]
    for split, rows in (("train", ~held), ("test", held), ("all", slice(None))):
        bunch = load_images("npz", path, split=split)
        np.testing.assert_array_equal(bunch.images, shuffled[rows])
        np.testing.assert_array_equal(bunch.labels, labels[rows])
        assert bunch.labels.dtype == np.int64
    assert bunch.class_names[9] == "class 9"


def test_plain_npz_layouts(tmp_path):
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


def test_memory_map_is_made_once_and_renewed_with_its_source(tmp_path):
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
    assert not stored.exists()  # nobody asks for the old pictures again
    assert not isinstance(load_images("npz", path).images, np.memmap)  # small: memory


@pytest.mark.parametrize("mapped", [True, np.True_])
def test_npz_without_suffix_is_mapped_beside_the_file(tmp_path, mapped):
    path = tmp_path / "pictures"
    with path.open("wb") as file:
        np.savez(file, images=IMAGES, labels=LABELS)
    images = load_images("npz", path, mmap=mapped).images
    assert isinstance(images, np.memmap)
    np.testing.assert_array_equal(images, IMAGES)
    assert len(list((tmp_path / "decoded").glob("pictures-train-*.npy"))) == 1


def test_numpy_false_reads_corrupted_arrays_into_memory(tmp_path):
    np.save(tmp_path / "labels.npy", np.tile(LABELS[:6].astype(np.uint8), 5))
    np.save(tmp_path / "fog.npy", IMAGES)
    bunch = load_images("cifar10-c", tmp_path, split="fog/2", mmap=np.False_)
    assert not isinstance(bunch.images, np.memmap)


def write_grey(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def write_set(name, place, value):
    """A set of two grey pictures in one of the layouts; the root to load it from."""
    if name == "npz":
        place.mkdir()
        images = np.full((2, 8, 8, 3), value, np.uint8)
        np.savez(place / "d.npz", images=images, labels=[0, 1])
        return place / "d.npz"
    if name == "cifar100":
        batch = {"data": np.full((2, 3072), value, np.uint8), "fine_labels": [0, 1]}
        dump(place / "cifar-100-python" / "train", batch)
        dump(place / "cifar-100-python" / "meta", {"fine_label_names": ["x", "y"]})
        return place
    folder = {"imagefolder": "train", "tiny-imagenet": "train"}.get(name, "fog/1")
    for label in ("x", "y"):
        write_grey(place / folder / label / "0.png", value)
    return place


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
def test_sets_of_one_name_share_a_folder_of_decoded_pictures(tmp_path, name, split):
    options = {"split": split, "mmap": True, "cache_dir": tmp_path / "cache"}
    roots = {v: write_set(name, tmp_path / str(v), v) for v in (10, 200)}
    for _ in range(2):  # written, then found again
        for value, root in roots.items():
            images = load_images(name, root, **options).images
            assert isinstance(images, np.memmap)
            assert np.unique(images).tolist() == [value]
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("name", ["imagefolder", "tiny-imagenet"])
def test_changed_pictures_are_decoded_again(tmp_path, name):
    root = write_set(name, tmp_path / "set", 10)
    write_grey(root / "train" / "x" / "1.png", 50)
    first = load_images(name, root, mmap=True).images
    write_grey(root / "train" / "x" / "0.png", 99)
    second = load_images(name, root, mmap=True)
    assert second.images[:, 0, 0, 0].tolist() == [99, 50, 10]
    assert first[0, 0, 0, 0] == 10  # who holds the old ones keeps them
    # As many pictures, but others: labels and pixels must move together.
    (root / "train" / "x" / "0.png").rename(root / "train" / "y" / "1.png")
    moved = load_images(name, root, mmap=True)
    assert moved.images[:, 0, 0, 0].tolist() == [50, 10, 99]
    assert moved.labels.tolist() == [0, 1, 1]


def test_the_folder_of_decoded_pictures_is_no_class(tmp_path):
    for label in ("x", "y"):
        write_grey(tmp_path / label / "0.png", 10)
    for _ in range(2):
        whole = load_images("imagefolder", tmp_path, mmap=True)
        assert whole.class_names == ["x", "y"]
        assert whole.labels.tolist() == [0, 1]


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"npz"}))
def test_absent_sets_say_where_to_put_them(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no"):
        load_images(name, tmp_path / "nowhere", split="train")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "mnist"}, r"Unknown set 'mnist'\. Choose one of 'cifar10'"),
        ({"name": "npz", "download": True}, r"'npz' cannot be downloaded from here"),
        ({"mmap": "r"}, r"mmap must be True, False or 'auto', got 'r'"),
        ({"split": "val"}, r"split must be 'train', 'test' or 'all', got 'val'"),
    ],
)
def test_bad_arguments_are_named(tmp_path, call, message):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    with pytest.raises(InvalidInputError, match=message):
        load_images(**{"name": "npz", "root": path, **call})


def test_npz_without_pictures_is_refused(tmp_path):
    path = tmp_path / "set.npz"
    with pytest.raises(FileNotFoundError, match=r"There is no file .*set\.npz"):
        load_images("npz", path)
    np.savez(path, images=IMAGES / 255.0, labels=LABELS)
    with pytest.raises(InvalidInputError, match=r"must be uint8 .* got float64"):
        load_images("npz", path)
    np.savez(path, pictures=IMAGES)
    with pytest.raises(InvalidInputError, match=r"holds the arrays pictures; expected"):
        load_images("npz", path)


def test_npz_that_is_not_divided_has_no_test_pictures(tmp_path):
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


@pytest.mark.parametrize(
    ("arrays", "split", "message"),
    [
        ({"images": IMAGES[:2], "labels": [0, 1, 1]}, "all", "3 labels for 2 pictures"),
        ({"images": IMAGES[:2], "labels": [-1, 1]}, "all", "count from 0, got -1 to 1"),
        (
            {"images": IMAGES[:2], "labels": [0, 2], "class_names": ["x", "y"]},
            "all",
            "count from 0 to 1, by the names of the classes, got 0 to 2",
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
def test_faults_of_npz_files_are_named(tmp_path, arrays, split, message):
    path = tmp_path / "set.npz"
    np.savez(path, **arrays)
    with pytest.raises(InvalidInputError, match=message):
        load_images("npz", path, split=split)


def test_packed_labels_fit_the_pictures(tmp_path):
    path = tmp_path / "packed.npz"
    pack(path, IMAGES[:4], LABELS[:5], np.zeros(5, bool))
    with pytest.raises(InvalidInputError, match=r"5 labels for 4 pictures"):
        load_images("npz", path)


def test_splits_of_an_image_folder_number_classes_alike(tmp_path):
    write_tree(tmp_path / "train", ["ant", "bee", "cat"], 1)
    write_tree(tmp_path / "test", ["ape", "cat", "ant"], 1)
    assert load_images("imagefolder", tmp_path).class_names == ["ant", "bee", "cat"]
    test = load_images("imagefolder", tmp_path, split="test")
    assert test.class_names == ["ant", "bee", "cat", "ape"]
    np.testing.assert_array_equal(test.labels, [0, 2, 3])


def test_what_others_leave_in_an_image_folder_is_no_class(tmp_path):
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


def test_links_to_folders_are_followed_at_any_depth(tmp_path):
    write_tree(tmp_path / "store", ["x", "y"], 2)
    write_tree(tmp_path / "set", ["x"], 1)
    for link in ("x/more", "y"):
        target = tmp_path / "store" / link[0]
        (tmp_path / "set" / link).symlink_to(target, target_is_directory=True)
    whole = load_images("imagefolder", tmp_path / "set")
    np.testing.assert_array_equal(whole.labels, [0, 0, 0, 1, 1])


def test_hidden_folders_are_no_classes_of_tiny_imagenet(tmp_path):
    write_tree(tmp_path / "train", ["n1", "n2"], 1, "images")
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    assert load_images("tiny-imagenet", tmp_path).class_names == ["n1", "n2"]


@pytest.mark.parametrize("n_bytes", [0, 100])
def test_damaged_pickles_are_named(tmp_path, n_bytes):
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(pickle.UnpicklingError, match=r"data_batch_3 cannot be read \("):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\3\4 no archive"])
def test_a_file_that_is_no_npz_is_named(tmp_path, content):
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"set\.npz cannot be read as an \.npz"):
        load_images("npz", path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_inside_an_npz_file_is_named(tmp_path, save):
    path = tmp_path / "set.npz"
    save(path, images=IMAGES, labels=LABELS)
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"set\.npz cannot be read as an \.npz"):
        load_images("npz", path)


def test_arrays_of_objects_in_an_npz_file_are_named(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, images=IMAGES, labels=LABELS.astype(object))
    with pytest.raises(InvalidInputError, match=r"set\.npz cannot .*Object arrays"):
        load_images("npz", path)


@pytest.mark.parametrize("keep", [4, 200])
def test_damaged_packed_pictures_are_named(tmp_path, keep):
    path = tmp_path / "packed.npz"
    pack(path, IMAGES[:4], LABELS[:4], np.zeros(4, bool))
    arrays = dict(np.load(path))
    start, end = arrays["offsets"][2:4]
    arrays["jpeg"][start + keep : end] = 0
    np.savez(path, **arrays)
    with pytest.raises(
        InvalidInputError, match=r"Picture 2 of .*packed\.npz cannot be decoded"
    ):
        load_images("npz", path)


def test_packed_pictures_know_their_split(tmp_path):
    path = tmp_path / "packed.npz"
    pack(path, IMAGES[:4], LABELS[:4], np.zeros(3, bool))
    with pytest.raises(InvalidInputError, match=r"is_test .* got 3 for 4 pictures"):
        load_images("npz", path)


def test_an_array_alone_has_no_labels(tmp_path):
    np.save(tmp_path / "set.npy", IMAGES)
    with pytest.raises(
        InvalidInputError, match=r"set\.npy holds one array and no label"
    ):
        load_images("npz", tmp_path / "set.npy")


def test_packed_pictures_are_of_one_shape(tmp_path):
    path = tmp_path / "packed.npz"
    first = np.random.default_rng(0).permutation(4)[0]
    grey = IMAGES[:4, ..., 0]
    mixed = [grey[i] if i == first else IMAGES[i] for i in range(4)]
    pack(path, mixed, LABELS[:4], np.zeros(4, bool))
    with pytest.raises(
        InvalidInputError,
        match=rf"has shape \(32, 32, 3\), picture {first} has \(32, 32, 1\)",
    ):
        load_images("npz", path)
    mixed = [IMAGES[i] if i == first else grey[i] for i in range(4)]
    pack(path, mixed, LABELS[:4], np.zeros(4, bool))
    channels = load_images("npz", path).images[1]
    np.testing.assert_array_equal(channels[..., 0], channels[..., 2])


def test_image_folders_are_read_as_by_torchvision(tmp_path):
    """Every suffix that it knows, and pixels as they are stored."""
    datasets = pytest.importorskip("torchvision.datasets")
    (tmp_path / "x").mkdir()
    for i, suffix in enumerate(datasets.folder.IMG_EXTENSIONS):
        picture = Image.fromarray(IMAGES[i])
        turned = picture.getexif()
        turned[0x0112] = 6  # to be shown turned by a quarter
        mode = "L" if suffix == ".pgm" else "RGB"
        picture.convert(mode).save(tmp_path / "x" / f"{i}{suffix}", exif=turned)
    Image.fromarray(IMAGES[0]).convert("CMYK").save(tmp_path / "x" / "ink.tif")
    theirs = datasets.ImageFolder(tmp_path)
    ours = load_images("imagefolder", tmp_path)
    assert len(ours.images) == len(datasets.folder.IMG_EXTENSIONS) + 1
    for image, (picture, _) in zip(ours.images, theirs, strict=True):
        np.testing.assert_array_equal(image, np.asarray(picture))
    assert ours.labels.tolist() == theirs.targets


def test_folders_without_pictures_are_no_classes(tmp_path):
    for split in ("train", "test"):
        write_tree(tmp_path / split, ["ant", "bee"], 1)
    for split in ("train", "test"):
        (tmp_path / split / "notes").mkdir()
        (tmp_path / split / "notes" / "of.txt").write_text("no picture")
        with pytest.raises(
            FileNotFoundError, match=rf"{split} holds folders without .*: 'notes'"
        ):
            load_images("imagefolder", tmp_path, split=split)
        (tmp_path / split / "notes" / "of.txt").unlink()
        (tmp_path / split / "notes").rmdir()
    (tmp_path / "test" / "bee" / "bee_0.JPEG").unlink()  # a class that "train" has
    test = load_images("imagefolder", tmp_path, split="test")
    assert test.class_names == ["ant", "bee"]
    assert test.labels.tolist() == [0]


def test_packed_pictures_of_inks_become_colours(tmp_path):
    path, streams = tmp_path / "packed.npz", []
    for image in IMAGES[:2]:
        buffer = io.BytesIO()
        Image.fromarray(image).convert("CMYK").save(buffer, "JPEG", quality=100)
        streams.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offsets = np.cumsum([0, *map(len, streams)])
    pack(path, IMAGES[:2], LABELS[:2], np.zeros(2, bool))
    with np.load(path) as packed:
        inks = {**packed, "jpeg": np.concatenate(streams), "offsets": offsets}
    np.savez(path, **inks)
    want = [np.asarray(Image.open(io.BytesIO(s)).convert("RGB")) for s in streams]
    got = load_images("npz", path).images
    order = np.random.default_rng(0).permutation(2)
    np.testing.assert_array_equal(got, np.stack(want)[order])
