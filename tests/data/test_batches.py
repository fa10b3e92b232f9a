"""Every sample counts once per epoch, in a batch of its kind, for any mask."""

import numpy as np
import pytest

from sklearn_sharpbalance.data.batches import BatchLayout, BatchSizes, batch_sizes

CASES = [
    # members, samples, batch size, fraction of SAM samples
    (1, 10, 3, 0.5),
    (3, 97, 16, 0.4),
    (2, 50, 7, 0.02),
    (2, 50, 7, 0.98),
    (3, 64, 64, 0.3),
    (1, 5, 100, 0.4),
    (2, 33, 1, 0.5),
    (2, 33, 8, 0.0),
    (2, 33, 8, 1.0),
    (3, 1347, 128, 0.45),
]


def draw_masks(n_members, n_samples, fraction, seed=0):
    return np.random.default_rng(seed).random((n_members, n_samples)) < fraction


def rows_of(layout, seed=0):
    return layout.epoch(np.random.default_rng(seed))


@pytest.mark.parametrize(("n_members", "n_samples", "batch_size", "fraction"), CASES)
def test_every_sample_has_one_place_with_weight(
    n_members, n_samples, batch_size, fraction
):
    masks = draw_masks(n_members, n_samples, fraction)
    sizes = batch_sizes(masks, batch_size)
    assert sizes.n_batches >= n_samples / batch_size
    for mask in masks:
        layout = BatchLayout(mask, sizes)
        rows, used = rows_of(layout), layout.share > 0
        assert rows.shape == (sizes.n_batches, sizes.width)
        assert sorted(rows[used]) == list(range(n_samples))
        # Unused places, too, have samples of the batch's kind.
        assert (mask[rows] == layout.is_sam[:, None]).all()
        counts = used.sum(axis=1)
        assert (counts <= layout.widths).all()
        for kind in set(layout.is_sam):
            assert np.ptp(counts[layout.is_sam == kind]) <= 1
        # The weights of an epoch are those of a plain mean over all samples.
        for kind in (True, False):
            total = layout.share[layout.is_sam == kind].sum() / sizes.n_batches
            assert total == pytest.approx((mask == kind).mean(), abs=1e-6)
        if mask.all() or not mask.any():
            np.testing.assert_allclose(layout.share.sum(axis=1), 1, rtol=1e-6)


def test_members_have_the_kinds_in_the_same_batches_spread_over_the_epoch():
    masks = np.stack([np.arange(500) % 5 != i for i in range(3)])
    sizes = batch_sizes(masks, 10)
    kinds = [BatchLayout(mask, sizes).is_sam for mask in masks]
    assert all((kind == kinds[0]).all() for kind in kinds)
    normal = np.flatnonzero(~kinds[0])
    assert len(normal) == sizes.n_normal == 10
    assert set(np.diff(normal)) == {5}


def test_number_and_width_do_not_depend_on_the_masks():
    assert batch_sizes(draw_masks(3, 1347, 0.45), 128).n_batches == 11
    for fraction in (0, 0.5, 0.6, 0.8, 1):
        sizes = batch_sizes(draw_masks(3, 9_950, fraction), 128)
        assert sizes.width == 128
        assert sizes.n_batches == (78 if fraction in (0, 1) else 81)
    apart = np.arange(9_950) < np.array([[2_000], [8_000]])  # would take 125 batches
    assert batch_sizes(apart, 128) == BatchSizes(39, 39, 206, 204)


@pytest.mark.parametrize("kind", [True, False])
def test_one_kind_needs_no_other_batches(kind):
    masks = np.full((2, 20), kind)
    n_sam = 4 if kind else 0
    assert batch_sizes(masks, 5) == BatchSizes(n_sam, 4 - n_sam, 5, 5)


def test_members_with_and_without_sam_samples_share_one_shape():
    masks = np.array([[False] * 12, [True] * 12, [True] * 8 + [False] * 4])
    sizes = batch_sizes(masks, 4)
    assert sizes == BatchSizes(2, 1, sam_width=4, normal_width=4)
    for mask in masks:
        layout = BatchLayout(mask, sizes)
        assert layout.is_sam.sum() == {0: 0, 12: 3, 8: 2}[mask.sum()]
        np.testing.assert_allclose(layout.share, 1 / 4)


def test_a_batch_has_at_least_two_places():
    """BatchNorm has no variance over one sample."""
    mask = np.zeros(40, dtype=bool)
    mask[3] = True
    layout = BatchLayout(mask, batch_sizes(mask[None], 8))
    rows = rows_of(layout)
    assert (rows[layout.is_sam] == 3).all()  # filled from the same kind
    assert (layout.share[layout.is_sam] > 0).sum() == 1
    assert batch_sizes(mask[None], 1).width == 2


def test_batches_depend_on_the_generator_only():
    mask = draw_masks(1, 60, 0.4)[0]
    layout = BatchLayout(mask, batch_sizes(mask[None], 16))
    one, again, other = (rows_of(layout, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
