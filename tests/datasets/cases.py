"""Small datasets in the published layouts."""

import pickle

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 30)


def write_pickle(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def planes(images):
    """Pixels as CIFAR stores them, one channel after the other."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar10(root):
    """20 pictures for training in five files, 10 for tests."""
    folder = root / "cifar-10-batches-py"
    for i in range(5):
        rows = slice(4 * i, 4 * i + 4)
        batch = {"data": planes(IMAGES[rows]), "labels": LABELS[rows].tolist()}
        write_pickle(folder / f"data_batch_{i + 1}", batch)
    batch = {"data": planes(IMAGES[20:]), "labels": LABELS[20:].tolist()}
    write_pickle(folder / "test_batch", batch)
    names = [f"class {i}" for i in range(10)]
    write_pickle(folder / "batches.meta", {"label_names": names})


def write_tree(folder, classes, per_class, nested=""):
    """Pictures ``<class>/<nested>/<class>_<k>.JPEG``, each of one grey value."""
    for c, name in enumerate(classes):
        (folder / name / nested).mkdir(parents=True)
        for k in range(per_class):
            picture = Image.fromarray(np.full((16, 16, 3), 40 * c + k, np.uint8))
            picture.save(folder / name / nested / f"{name}_{k}.JPEG", quality=95)


def write_grey(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def write_dataset(name, place, value):
    """Write two grey pictures in one of the layouts; return the root to load."""
    if name == "npz":
        place.mkdir()
        images = np.full((2, 8, 8, 3), value, np.uint8)
        np.savez(place / "d.npz", images=images, labels=[0, 1])
        return place / "d.npz"
    if name == "cifar100":
        folder = place / "cifar-100-python"
        batch = {"data": np.full((2, 3072), value, np.uint8), "fine_labels": [0, 1]}
        write_pickle(folder / "train", batch)
        write_pickle(folder / "meta", {"fine_label_names": ["x", "y"]})
        return place
    folder = {"imagefolder": "train", "tiny-imagenet": "train"}.get(name, "fog/1")
    for label in ("x", "y"):
        write_grey(place / folder / label / "0.png", value)
    return place
