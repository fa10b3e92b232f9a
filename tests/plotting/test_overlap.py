"""Overlap of the members' sharpness-aware sets."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import SubsetOverlapDisplay, subset_overlap
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


@pytest.mark.parametrize("n_members", rest_slow([12, 3, 30]))
def test_values_in_a_matrix_do_not_overlap(n_members):
    masks = rng.random((n_members, 50)) < 0.4
    display = SubsetOverlapDisplay(subset_overlap(masks)).plot()
    display.figure_.draw_without_rendering()
    boxes = [text.get_window_extent() for text in display.text_[0]]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert all(text.get_visible() for text in display.text_.flat)


def test_empty_displays_raise_before_a_figure_is_made():
    for overlap in (np.ones((1, 2)), np.ones((0, 0)), [1.0]):
        with pytest.raises(InvalidInputError, match=r"overlap must have shape"):
            SubsetOverlapDisplay(overlap).plot()
    assert not plt.get_fignums()
