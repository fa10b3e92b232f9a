"""Overlap of the members' sharpness-aware sets, and their sharpest images."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import SubsetOverlapDisplay, subset_overlap
from sklearn_sharpbalance.plotting.overlap import as_image
from tests.cases import rest_slow

rng = np.random.default_rng(1)


def test_overlap_equals_that_of_python_sets():
    masks = rng.random((4, 30)) < 0.3
    sets = [set(np.flatnonzero(mask)) for mask in masks]
    overlap = subset_overlap(masks)
    for i, a in enumerate(sets):
        for j, b in enumerate(sets):
            assert overlap[i, j] == pytest.approx(len(a & b) / len(a | b))
    empty = subset_overlap([[False, False], [False, False], [True, False]])
    np.testing.assert_array_equal(empty, [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    with pytest.raises(InvalidInputError, match=r"must be a boolean array .* int64"):
        subset_overlap(np.ones((2, 3), dtype=np.int64))


def test_hardest_images_have_the_highest_sharpness(ensemble, digits):
    display = SubsetOverlapDisplay.from_estimator(ensemble, digits.images, digits.y)
    display.plot_hardest(3)
    assert display.axes_.shape == (3, 3)
    for member, scores in enumerate(ensemble.sharpness_):
        for column, sample in enumerate(np.argsort(scores)[::-1][:3]):
            ax = display.axes_[member, column]
            shown = ax.images[0].get_array()
            np.testing.assert_array_equal(shown, digits.images[sample])
            assert ax.get_title() == f"{digits.y[sample]}\n{scores[sample]:.3g}"


def test_pandas_objects_are_indexed_by_position(ensemble, digits):
    import pandas as pd

    index = rng.permutation(len(digits.y))
    labels = pd.Series(digits.y, index=index)
    images = pd.Series(list(digits.images), index=index)
    shown = [
        SubsetOverlapDisplay.from_estimator(ensemble, *data).plot_hardest(3).axes_
        for data in ((digits.images, digits.y), (images, labels))
    ]
    for want, got in zip(*(axes.ravel() for axes in shown)):
        assert got.get_title() == want.get_title()
        images = [ax.images[0].get_array() for ax in (want, got)]
        np.testing.assert_array_equal(*images)


def test_plot_hardest_without_matching_images_raises(ensemble):
    display = SubsetOverlapDisplay.from_estimator(ensemble)
    with pytest.raises(InvalidInputError, match="needs sharpness and images"):
        display.plot_hardest()
    display.images = [np.zeros((8, 8))] * 3
    with pytest.raises(InvalidInputError, match="3 images but scores of 240 samples"):
        display.plot_hardest()


def test_images_of_every_layout_are_converted():
    colour = rng.integers(256, size=(3, 8, 9), dtype=np.uint8)
    np.testing.assert_array_equal(as_image(colour), colour.transpose(1, 2, 0))
    assert as_image(colour[:1]).shape == (8, 9)
    assert as_image(colour.transpose(1, 2, 0)).shape == (8, 9, 3)
    standard = as_image(rng.normal(size=(3, 8, 9)))
    assert (standard.min(), standard.max()) == (0, 1)
    with pytest.raises(InvalidInputError, match=r"An image must have .* \(64,\)"):
        as_image(np.zeros(64))


@pytest.mark.parametrize("n_members", rest_slow([12, 3, 30]))
def test_values_in_a_matrix_do_not_overlap(n_members):
    masks = rng.random((n_members, 50)) < 0.4
    display = SubsetOverlapDisplay.from_masks(masks)
    display.figure_.draw_without_rendering()
    boxes = [text.get_window_extent() for text in display.text_[0]]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert all(text.get_visible() for text in display.text_.flat)


def test_values_are_hidden_if_they_would_overlap():
    ax = plt.figure(figsize=(3, 3)).subplots()
    display = SubsetOverlapDisplay.from_masks(rng.random((20, 50)) < 0.4, ax=ax)
    assert not any(text.get_visible() for text in display.text_.flat)


def test_empty_displays_raise_before_a_figure_is_made():
    for overlap in (np.ones((1, 2)), np.ones((0, 0)), [1.0]):
        with pytest.raises(InvalidInputError, match=r"overlap must have shape"):
            SubsetOverlapDisplay(overlap).plot()
    assert not plt.get_fignums()
