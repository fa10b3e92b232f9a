"""Common tests of all displays: constructors, axes, labels and global state."""

import ast
import copy
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import sklearn_sharpbalance.plotting as plotting
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import (
    LossLandscapeDisplay,
    OODDisplay,
    ReliabilityDisplay,
    subset_overlap,
)
from tests.cases import rest_slow
from tests.plotting.made_up import PROBAS, Y

SEARCH = GridSearchCV(SVC(), {"C": [1, 9], "gamma": [0.1, 1]}, cv=2).fit(PROBAS[0], Y)
# Each constructor of each display, as a function of ensemble, data and plot options.
BUILDERS = {
    "ReliabilityDisplay.from_estimator": lambda e, d, show: show(e, d.X, d.y),
    "ReliabilityDisplay.from_predictions": lambda e, d, show: show(
        Y, PROBAS[0], n_bins=5
    ),
    "OODDisplay.from_estimator": lambda e, d, show: show(
        e, d.X, d.X[::-1] * 3, score="pds"
    ),
    "LossLandscapeDisplay.from_estimator": lambda e, d, show: show(
        e, d.X, d.y, n_dims=2, n_points=3
    ),
    "SearchDisplay.from_estimator": lambda e, d, show: show(SEARCH, x="C", y="gamma"),
}


def test_every_constructor_of_every_display_is_tested():
    assert set(BUILDERS) == {
        f"{display}.{name}"
        for display in plotting.__all__
        if display.endswith("Display")
        for name in dir(getattr(plotting, display))
        if name.startswith("from_")
    }


def build(key, ensemble, digits, ax=None):
    display, name = key.split(".")
    constructor = getattr(getattr(plotting, display), name)
    return BUILDERS[key](ensemble, digits, partial(constructor, ax=ax))


@contextmanager
def unchanged_global_state():
    """Assert that neither rcParams nor a global generator changes."""
    rc, torch_state = dict(mpl.rcParams), torch.get_rng_state()
    name, keys, position, *_ = np.random.get_state()  # noqa: NPY002
    yield
    assert dict(mpl.rcParams) == rc
    assert torch.equal(torch.get_rng_state(), torch_state)
    after = np.random.get_state()  # noqa: NPY002
    assert (after[0], after[2]) == (name, position)
    assert np.array_equal(after[1], keys)


# One or two constructors of each display.
MAIN = [key for key in BUILDERS if key.endswith("from_estimator")]


@pytest.fixture(scope="module", params=rest_slow(BUILDERS, MAIN))
def shown(request, ensemble, digits):
    """Return a display on its own figure, drawn once for several tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = build(request.param, ensemble, digits)
        display.figure_.draw_without_rendering()
    return display


def test_plot_without_axes_makes_a_new_figure(shown):
    assert shown.figure_ is shown.ax_.figure
    assert shown.ax_ in shown.figure_.axes
    before = plt.get_fignums()
    again = copy.copy(shown)
    assert again.plot() is again
    assert again.ax_ is not shown.ax_
    assert plt.get_fignums() == [*before, again.figure_.number]


@pytest.mark.parametrize("key", rest_slow(BUILDERS, MAIN))
def test_plot_draws_on_given_axes_only(key, ensemble, digits):
    figure, axes = plt.subplots(1, 2)
    with unchanged_global_state():
        display = build(key, ensemble, digits, axes[1])
    assert display.ax_ is axes[1]
    assert display.figure_ is figure
    assert not axes[0].has_data()
    assert axes[1].has_data() or axes[1].images or axes[1].texts
    assert plt.get_fignums() == [figure.number]


def test_axes_are_labelled(shown):
    assert shown.ax_.get_ylabel()
    assert shown.ax_.get_xlabel()


def overlaps(a, b):
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return width > 1 and height > 1


def test_texts_do_not_overlap(shown):
    display = shown
    ax = display.ax_
    texts = [t for t in ax.texts if t.get_text()]
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            drawn = min(low, high) <= tick.get_loc() <= max(low, high)
            if drawn and tick.label1.get_rotation() == 0:
                texts.append(tick.label1)
    texts += [ax.xaxis.label, ax.yaxis.label, ax.title]
    texts = [t for t in texts if t.get_text()]
    boxes = [t.get_window_extent() for t in texts]
    figure = display.figure_.bbox
    for i, a in enumerate(boxes):
        assert a.x0 >= -1, texts[i]
        assert a.y0 >= -1, texts[i]
        assert a.x1 <= figure.x1 + 1, texts[i]
        assert a.y1 <= figure.y1 + 1, texts[i]
        for b in boxes[:i]:
            assert not overlaps(a, b), texts[i]


@pytest.mark.parametrize(
    "display", [ReliabilityDisplay, LossLandscapeDisplay, OODDisplay]
)
def test_unfitted_ensembles_raise(display, digits):
    unfitted = SharpBalanceEnsembleClassifier()
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        display.from_estimator(unfitted, digits.X, digits.y)


def test_a_reliability_diagram_works_with_any_classifier(digits):
    forest = RandomForestClassifier(2).fit(digits.X, digits.y)
    ReliabilityDisplay.from_estimator(forest, digits.X, digits.y)


def test_no_module_imports_matplotlib_at_its_top():
    for path in Path(plotting.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in getattr(node, "names", [])]
            names.append(getattr(node, "module", None) or "")
            assert not any(name.startswith("matplotlib") for name in names), path


def test_overlap_equals_that_of_python_sets():
    masks = np.random.default_rng(1).random((4, 30)) < 0.3
    sets = [set(np.flatnonzero(mask)) for mask in masks]
    overlap = subset_overlap(masks)
    for i, a in enumerate(sets):
        for j, b in enumerate(sets):
            assert overlap[i, j] == pytest.approx(len(a & b) / len(a | b))
    empty = subset_overlap([[False, False], [False, False], [True, False]])
    np.testing.assert_array_equal(empty, [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    with pytest.raises(InvalidInputError, match=r"must be a boolean array .* int64"):
        subset_overlap(np.ones((2, 3), dtype=np.int64))
