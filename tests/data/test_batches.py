"""Every sample counts once per epoch, for any mask."""

import numpy as np
import pytest

from sklearn_sharpbalance.data.batches import PartSizes, epoch_batches, part_sizes

CASES = [
    # members, samples, batch size, share of SAM samples
    (1, 10, 3, 0.5),
    (3, 97, 16, 0.4),
    (2, 50, 7, 0.02),
    (2, 50, 7, 0.98),
    (3, 64, 64, 0.3),
    (1, 5, 100, 0.4),
    (2, 33, 1, 0.5),
]


def draw_masks(n_members, n_samples, share, seed=0):
    return np.random.default_rng(seed).random((n_members, n_samples)) < share


def batches_of(mask, sizes, seed=0):
    return epoch_batches(mask, sizes, np.random.default_rng(seed))


@pytest.mark.parametrize(("n_members", "n_samples", "batch_size", "share"), CASES)
def test_every_sample_has_one_place_with_weight(
    n_members, n_samples, batch_size, share
):
    masks = draw_masks(n_members, n_samples, share)
    sizes = part_sizes(masks, batch_size)
    for mask in masks:
        batches = batches_of(mask, sizes)
        counts = batches.share > 0
        assert sorted(batches.indices[counts]) == list(range(n_samples))
        is_sam = mask[batches.indices]  # each sample is in its own part
        assert is_sam[:, : sizes.sam][counts[:, : sizes.sam]].all()
        assert not is_sam[:, sizes.sam :][counts[:, sizes.sam :]].any()
        # A batch is a plain mean over its samples.
        means = np.where(counts, 1 / counts.sum(axis=1, keepdims=True), 0)
        np.testing.assert_allclose(batches.share, means, rtol=1e-6)


def test_parts_are_divided_evenly():
    masks = draw_masks(3, 1347, 0.45)
    sizes = part_sizes(masks, 128)
    assert sizes.n_batches == 11
    for mask in masks:
        counts = batches_of(mask, sizes).share > 0
        for part in (counts[:, : sizes.sam], counts[:, sizes.sam :]):
            assert np.ptp(part.sum(axis=1)) <= 1
        assert counts.sum(axis=1).max() <= 128


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_no_batch_is_empty_or_larger_than_batch_size(batch_size):
    for seed in range(20):
        mask = draw_masks(1, 40, 0.3 + 0.02 * seed, seed)[0]
        sizes = part_sizes(mask[None], batch_size)
        n_real = (batches_of(mask, sizes, seed).share > 0).sum(axis=1)
        assert n_real.tolist() == [batch_size] * (40 // batch_size)


def test_a_part_without_samples_has_no_places():
    no_sam = np.zeros((2, 20), dtype=bool)
    assert part_sizes(no_sam, 5) == PartSizes(4, sam=0, normal=5)
    assert part_sizes(~no_sam, 5) == PartSizes(4, sam=5, normal=0)
    assert batches_of(no_sam[0], part_sizes(no_sam, 5)).indices.shape == (4, 5)


def test_members_with_and_without_sam_samples_share_one_shape():
    masks = np.array([[False] * 12, [True] * 12])
    sizes = part_sizes(masks, 4)
    assert sizes == PartSizes(3, sam=4, normal=4)
    lone = batches_of(masks[0], sizes)
    assert (lone.share[:, :4] == 0).all()
    np.testing.assert_allclose(lone.share[:, 4:], 1 / 4)


def test_a_part_has_at_least_two_places():
    """BatchNorm has no variance over one sample."""
    masks = np.zeros((1, 40), dtype=bool)
    masks[0, 3] = True
    sizes = part_sizes(masks, 8)
    assert sizes.sam == 2
    batches = batches_of(masks[0], sizes)
    assert (batches.indices[:, :2] == 3).all()  # filled from the same part
    assert (batches.share[:, :2] > 0).sum() == 1


def test_batches_depend_on_the_generator_only():
    mask = draw_masks(1, 60, 0.4)[0]
    sizes = part_sizes(mask[None], 16)
    one, again, other = (batches_of(mask, sizes, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.indices, again.indices)
    assert (one.indices != other.indices).any()
