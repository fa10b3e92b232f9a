"""Readers of image datasets: CIFAR-10, npz files and folders of images."""

import numpy as np

from sklearn_sharpbalance.datasets import load_images


def read_cifar10(root, split):
    """Images and labels of "train" or "test"; torchvision checks the MD5 sums."""
    from torchvision.datasets import CIFAR10

    dataset = CIFAR10(str(root), train=split == "train")
    return dataset.data, np.array(dataset.targets)


def read_npz(path, split):
    """Images and labels of x_train, y_train, ..., or of images, labels[, is_test]."""
    with np.load(path) as arrays:
        if "x_train" in arrays:
            images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"].ravel()
        else:
            images, labels = arrays["images"], arrays["labels"]
            if "is_test" in arrays:
                rows = arrays["is_test"] == (split == "test")
                images, labels = images[rows], labels[rows]
            elif split == "test":
                raise ValueError(f"{path} does not say which images are for tests.")
    return images[..., None] if images.ndim == 3 else images, labels


def read_folder(root, split):
    """Images and class codes of ``<root>/<split>/<class>/<image>``."""
    images, names = load_images(root / split)
    return images, np.unique(names, return_inverse=True)[1]
