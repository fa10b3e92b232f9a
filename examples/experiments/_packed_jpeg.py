"""Pictures that are packed into one npz file as JPEG streams.

Arrays of the file: ``jpeg``, the bytes of all pictures one after the other;
``offsets``, where each picture starts and the last one ends; ``labels``; ``is_test``.
"""

import io

import numpy as np
from PIL import Image

__all__ = ["is_packed", "read_packed"]


def is_packed(path):
    """Whether an npz file contains JPEG streams."""
    with np.load(path) as arrays:
        return "jpeg" in arrays


def read_packed(path, split):
    """Return the pictures, uint8 (N, H, W, 3), and the labels of one split.

    The file is sorted by class. Its pictures are shuffled, always in the same order, so
    that the first pictures are a fair sample.
    """
    with np.load(path) as arrays:
        jpeg, offsets = arrays["jpeg"], arrays["offsets"]
        labels, is_test = arrays["labels"].astype(np.int64), arrays["is_test"]
    order = np.random.default_rng(0).permutation(len(labels))
    rows = order[is_test.astype(bool)[order] == (split == "test")]
    images = [_decode(jpeg[offsets[row] : offsets[row + 1]]) for row in rows]
    return np.stack(images), labels[rows]


def _decode(stream):
    return np.asarray(Image.open(io.BytesIO(stream.tobytes())).convert("RGB"))
