"""Common tests of all displays: constructors, axes, labels and global state."""

import ast
import copy
import inspect
import warnings
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import sklearn_sharpbalance.plotting as plotting
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import (
    CorruptionDisplay,
    EnsembleSizeDisplay,
    LossLandscapeDisplay,
    OODDisplay,
    ReliabilityDisplay,
    SearchDisplay,
    SubsetOverlapDisplay,
    TradeoffDisplay,
    TrainingHistoryDisplay,
)
from tests.cases import rest_slow
from tests.plotting.conftest import Ensemble


def spread(estimator, X, y):
    """Return a cheap replacement of the sharpness."""
    return estimator.member_predict_proba(X).std()


class Pictures(Ensemble):
    """A fitted ensemble of tables that accepts uint8 pictures."""

    def __init__(self, ensemble):
        self.ensemble = ensemble
        vars(self).update(vars(ensemble))

    def member_predict_proba(self, images):
        X = images.reshape(len(images), -1).astype(np.float32) / 255
        return super().member_predict_proba(X)


def probas(ensemble, digits):
    return ensemble.member_predict_proba(digits.X)


def search():
    """A search that was fitted, without a fit."""
    fitted = GridSearchCV(DummyClassifier(), {})
    radii, ratios = np.meshgrid([0.02, 0.1], [0.2, 0.4, 0.6])
    scores = 0.9 + 0.01 * np.arange(6)
    fitted.cv_results_ = {
        "param_rho": radii.ravel(),
        "param_flat_ratio": ratios.ravel(),
        "mean_test_score": scores,
        "std_test_score": np.full(6, 0.01),
        "split0_test_score": scores - 0.01,
        "split1_test_score": scores + 0.01,
    }
    fitted.best_index_ = 5
    return fitted


# Constructors of displays, as functions of ensemble, data and axes.
BUILDERS = {
    "tradeoff_init": lambda e, d, ax: TradeoffDisplay(
        [1.0, 2.0, 3.0], [0.2, 0.4, 0.5], labels=["a", "b", "c"]
    ).plot(ax),
    "tradeoff_estimator": lambda e, d, ax: TradeoffDisplay.from_estimator(
        {"one": e, "two": e}, d.X, d.y, sharpness=spread, ax=ax
    ),
    "tradeoff_predictions": lambda e, d, ax: TradeoffDisplay.from_predictions(
        d.y,
        [probas(e, d), probas(e, d)[:2]],
        [1.0, 2.0],
        classes=e.classes_,
        groups=["x", "y"],
        ax=ax,
    ),
    "reliability_init": lambda e, d, ax: ReliabilityDisplay(
        [0.3, 0.8], [0.2, 0.9], [5, 15], [0.0, 0.5, 1.0], ece=0.1, name="one"
    ).plot(ax),
    "reliability_estimator": lambda e, d, ax: ReliabilityDisplay.from_estimator(
        e, d.X, d.y, ax=ax
    ),
    "reliability_predictions": lambda e, d, ax: ReliabilityDisplay.from_predictions(
        d.y, e.predict_proba(d.X), labels=e.classes_, kind="line", n_bins=5, ax=ax
    ),
    "corruption_init": lambda e, d, ax: CorruptionDisplay([[0.9, 0.8]]).plot(ax),
    "corruption_estimator": lambda e, d, ax: CorruptionDisplay.from_estimator(
        Pictures(e),
        (d.images[:20, None] * 255).astype(np.uint8),
        d.y[:20],
        corruptions=["brightness"],
        severities=(1, 5),
        ax=ax,
        kind="bars",
    ),
    "corruption_table": lambda e, d, ax: CorruptionDisplay.from_estimator(
        {"one": e}, d.X, d.y, corruptions=["feature_shift"], severities=(1, 3), ax=ax
    ),
    "corruption_sets": lambda e, d, ax: CorruptionDisplay.from_estimator(
        [e],
        d.X,
        d.y,
        corruptions={("dark", s): (d.X / s, d.y) for s in (1, 2)},
        severities=(1, 2),
        ax=ax,
    ),
    "corruption_predictions": lambda e, d, ax: CorruptionDisplay.from_predictions(
        d.y,
        {"a": probas(e, d)[None], "b": probas(e, d)[None, None]},
        classes=e.classes_,
        ax=ax,
        kind="mean",
    ),
    "ood_init": lambda e, d, ax: OODDisplay(
        [0.1, 0.2, 0.3], [0.25, 0.4], name="one"
    ).plot(ax),
    "ood_estimator": lambda e, d, ax: OODDisplay.from_estimator(
        e, d.X, d.X[::-1] * 3, score="pds", ax=ax
    ),
    "ood_predictions": lambda e, d, ax: OODDisplay.from_predictions(
        d.X[:, 20], d.X[:, 21] + 0.3, score_name="PDS", kind="histogram", ax=ax
    ),
    "overlap_init": lambda e, d, ax: SubsetOverlapDisplay(
        [[1.0, 0.4], [0.4, 1.0]], member_names="ab"
    ).plot(ax),
    "overlap_estimator": lambda e, d, ax: SubsetOverlapDisplay.from_estimator(e, ax=ax),
    "overlap_masks": lambda e, d, ax: SubsetOverlapDisplay.from_masks(
        e.sam_masks_, measure="share", ax=ax
    ),
    "landscape_init": lambda e, d, ax: LossLandscapeDisplay(
        [[1.0, 2.0], [3.0, 4.0]], [0, 1], [0, 1]
    ).plot(ax),
    "landscape_line": lambda e, d, ax: LossLandscapeDisplay.from_estimator(
        e, d.X, d.y, members=(0, 1), n_points=5, ax=ax
    ),
    "landscape_plane": lambda e, d, ax: LossLandscapeDisplay.from_estimator(
        e, d.X, d.y, n_dims=2, n_points=3, ax=ax
    ),
    "search_init": lambda e, d, ax: SearchDisplay(
        [[0.9, 0.93], [0.91, 0.89]], [0.2, 0.4], [0.02, 0.1], best=(0, 1)
    ).plot(ax),
    "search_estimator": lambda e, d, ax: SearchDisplay.from_estimator(search(), ax=ax),
    "history_init": lambda e, d, ax: TrainingHistoryDisplay(
        [{"train_loss": [2.0, 1.0, 0.5], "phase": ["warmup", "warmup", "balanced"]}]
    ).plot(ax),
    "history_estimator": lambda e, d, ax: TrainingHistoryDisplay.from_estimator(
        e, ax=ax
    ),
    "history_net": lambda e, d, ax: TrainingHistoryDisplay.from_estimator(
        e.estimators_[0], metric="valid_acc", ax=ax
    ),
    "history_columns": lambda e, d, ax: TrainingHistoryDisplay.from_history(
        [{"train_loss": [2.0, 1.0]}], logy=True, ax=ax
    ),
    "size_init": lambda e, d, ax: EnsembleSizeDisplay(
        [1, 2, 3], [[0.8, 0.82], [0.9], [0.91]]
    ).plot(ax),
    "size_estimator": lambda e, d, ax: EnsembleSizeDisplay.from_estimator(
        e, d.X, d.y, ax=ax
    ),
    "size_predictions": lambda e, d, ax: EnsembleSizeDisplay.from_predictions(
        d.y, probas(e, d), labels=e.classes_, metric="nll", name="E", ax=ax
    ),
}

MATRICES = (SubsetOverlapDisplay,)


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


# One or two builders of each display.
MAIN = [name for name in BUILDERS if name.endswith("_estimator")]
MAIN += ["corruption_predictions", "landscape_plane"]


@pytest.fixture(params=rest_slow(BUILDERS, MAIN))
def build(request, ensemble, digits):
    return lambda ax=None: BUILDERS[request.param](ensemble, digits, ax)


@pytest.fixture(scope="module", params=rest_slow(BUILDERS, MAIN))
def shown(request, ensemble, digits):
    """Return a display on its own figure, drawn once for several tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = BUILDERS[request.param](ensemble, digits, None)
        display.figure_.draw_without_rendering()
    return display


@pytest.mark.slow
def test_every_constructor_of_every_display_is_tested(ensemble, digits, monkeypatch):
    displays = [getattr(plotting, n) for n in plotting.__all__ if n.endswith("Display")]
    assert len(displays) == 9
    constructors = {
        (display, name)
        for display in displays
        for name in ["__init__", *dir(display)]
        if name == "__init__" or name.startswith("from_")
    }
    called = set()

    def record_calls(display, name):
        original = inspect.getattr_static(display, name)
        function = getattr(original, "__func__", original)

        def recorded(*args, **kwargs):
            called.add((display, name))
            return function(*args, **kwargs)

        is_class_method = isinstance(original, classmethod)
        monkeypatch.setattr(
            display, name, classmethod(recorded) if is_class_method else recorded
        )

    for display, name in constructors:
        record_calls(display, name)
    for build in BUILDERS.values():
        before = set(called)
        build(ensemble, digits, None)
        plt.close("all")
        made = {name for _, name in called - before}
        # A call of __init__ by another constructor does not count as a test of it.
        if made - {"__init__"}:
            called -= {(d, n) for d, n in called - before if n == "__init__"}
    assert called == constructors


def test_axes_belong_to_the_figure(shown):
    assert shown.figure_ is shown.ax_.figure
    assert shown.ax_ in shown.figure_.axes


INIT = [name for name in BUILDERS if "_init" in name]
DIFFERENT = ["corruption_init", "landscape_init", "overlap_init", "tradeoff_init"]


@pytest.mark.parametrize("name", rest_slow(INIT, DIFFERENT))
def test_plot_without_axes_makes_a_new_figure(name, ensemble, digits):
    display = BUILDERS[name](ensemble, digits, None)
    before = plt.get_fignums()
    again = copy.copy(display)
    assert again.plot() is again
    assert again.ax_ is not display.ax_
    assert plt.get_fignums() == [*before, again.figure_.number]


def test_plot_draws_on_given_axes_only(build):
    figure, axes = plt.subplots(1, 2)
    with unchanged_global_state():
        display = build(axes[1])
    assert display.ax_ is axes[1]
    assert display.figure_ is figure
    assert not axes[0].has_data()
    assert axes[1].has_data() or axes[1].images or axes[1].texts
    assert plt.get_fignums() == [figure.number]


def test_axes_are_labelled(shown):
    display = shown
    if isinstance(display, MATRICES):
        assert display.ax_.get_title()
        assert [t.get_text() for t in display.ax_.get_xticklabels()]
    elif not (isinstance(display, CorruptionDisplay) and not display.lines_):
        assert display.ax_.get_xlabel()
    if not isinstance(display, MATRICES):
        assert display.ax_.get_ylabel()


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
    ("display", "needs_y"),
    [
        (TradeoffDisplay, True),
        (ReliabilityDisplay, True),
        (EnsembleSizeDisplay, True),
        (SubsetOverlapDisplay, False),
        (LossLandscapeDisplay, True),
        (CorruptionDisplay, True),
        (OODDisplay, True),
    ],
)
def test_unfitted_ensembles_raise(display, needs_y, digits):
    args = (digits.X, digits.y) if needs_y else (digits.X,)
    with pytest.raises(NotFittedError, match="Ensemble instance is not fitted yet"):
        display.from_estimator(Ensemble(), *args)


def test_estimators_without_the_attribute_raise(digits):
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(2).fit(digits.X, digits.y)
    with pytest.raises(InvalidInputError, match="has no 'member_predict_proba'"):
        EnsembleSizeDisplay.from_estimator(forest, digits.X, digits.y)
    with pytest.raises(InvalidInputError, match="has no 'sam_masks_'"):
        SubsetOverlapDisplay.from_estimator(forest)
    with pytest.raises(InvalidInputError, match="has no 'history_'"):
        TrainingHistoryDisplay.from_estimator(forest)
    # A reliability diagram works with any classifier.
    ReliabilityDisplay.from_estimator(forest, digits.X, digits.y)


def test_no_module_imports_matplotlib_at_its_top():
    for path in Path(plotting.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in getattr(node, "names", [])]
            names.append(getattr(node, "module", None) or "")
            assert not any(name.startswith("matplotlib") for name in names), path
