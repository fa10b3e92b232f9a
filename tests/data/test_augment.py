"""Augmentation against a loop over pictures, and by batch against by epoch."""

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform

from sklearn_sharpbalance.data.augment import (
    EpochAugment,
    RandomCropFlip,
    resolve_transform,
)
from sklearn_sharpbalance.exceptions import InvalidInputError


def pictures(n=12, channels=3, height=6, width=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, height, width)
    return torch.randint(1, 255, shape, generator=generator).to(torch.uint8)


def crop_flip(picture, top, left, mirror, padding, mode):
    """Augment one picture (C, H, W)."""
    _, height, width = picture.shape
    sides = ((0, 0), (padding, padding), (padding, padding))
    padded = np.pad(picture, sides, "reflect" if mode == "reflect" else "constant")
    cropped = padded[:, top : top + height, left : left + width]
    return cropped[:, :, ::-1] if mirror else cropped


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_flip_equals_a_loop(padding, dtype, mode):
    x = pictures().to(dtype)
    transform = RandomCropFlip(padding=padding, mode=mode)
    drawn = transform.draw((len(x),), "cpu")
    got = transform.apply(x, drawn)
    assert got.dtype == dtype
    for picture, numbers, result in zip(x.numpy(), drawn.tolist(), got.numpy()):
        want = crop_flip(picture, *numbers, padding, mode)
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_warp_equals_a_loop(dtype):
    x = pictures().to(dtype)
    transform = RandomCropFlip(padding=0, flip=False, warp=0.3)
    drawn = transform.draw((len(x),), "cpu")
    got = transform.apply(x, drawn)
    assert got.dtype == dtype
    assert 0 < drawn[:, 3:].any(1).sum() < len(x)
    centre = (np.array(x.shape[2:]) - 1) / 2
    for picture, numbers, result in zip(x.numpy(), drawn.tolist(), got.numpy()):
        a, b, c, d = 0.3 * np.array(numbers[3:]) / 1000
        matrix = np.array([[1 + d, c], [b, 1 + a]])  # of row and column
        offset = centre - matrix @ centre
        for plane, warped in zip(picture.astype(float), result):
            want = affine_transform(plane, matrix, offset, order=1, mode="reflect")
            atol = 0.51 if dtype == torch.uint8 else 1e-3
            np.testing.assert_allclose(warped, want, atol=atol)


def test_all_offsets_and_both_sides_are_drawn():
    drawn = RandomCropFlip(padding=1).draw((500,), "cpu").numpy()
    for column, values in enumerate([range(3), range(3), range(2)]):
        np.testing.assert_array_equal(np.unique(drawn[:, column]), list(values))
    # Each picture has its own draw: the nine places are about equally frequent.
    places = np.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)
    assert places.min() > 25


def shift(x):
    return torch.roll(x, 1, dims=-1)


@pytest.mark.parametrize(
    "transform", [None, RandomCropFlip(padding=2), RandomCropFlip(warp=0.2), shift]
)
def test_batch_by_batch_equals_many_batches(transform):
    """Augmenting batch by batch or a whole epoch gives the same pictures."""
    x = pictures(n=24).unflatten(0, (4, 6))
    augment = EpochAugment(transform, (4, 6), torch.device("cpu"))
    one_by_one = torch.stack([augment.batch(t, x[t]) for t in range(4)])
    assert augment.batches(0, 4, x).equal(one_by_one)
    assert augment.batches(1, 3, x[1:3]).equal(one_by_one[1:3])


def test_names_and_functions_resolve():
    assert isinstance(resolve_transform("crop_flip"), RandomCropFlip)
    assert resolve_transform(shift) is shift
    assert resolve_transform(None) is None


@pytest.mark.parametrize("padding", [-1, 1.5, "4"])
def test_bad_padding_raises(padding):
    with pytest.raises(
        InvalidInputError, match="padding must be a whole number of pix"
    ):
        RandomCropFlip(padding)


@pytest.mark.parametrize("warp", [-0.1, 1.0, "0.2"])
def test_bad_warp_raises(warp):
    with pytest.raises(InvalidInputError, match="warp"):
        RandomCropFlip(warp=warp)
