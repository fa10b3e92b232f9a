"""Overlap of the members' sharpness-aware sets."""

import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import subset_overlap

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
