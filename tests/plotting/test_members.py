"""Overlap, agreement and history of members, against naive loops."""

import warnings
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import (
    MemberAgreementDisplay,
    SubsetOverlapDisplay,
    TrainingHistoryDisplay,
    subset_overlap,
)
from sklearn_sharpbalance.plotting._base import PALETTE, colour, marker
from sklearn_sharpbalance.plotting.overlap import as_picture
from tests.plotting.made_up import PROBAS

rng = np.random.default_rng(1)


@pytest.mark.parametrize("measure", ["jaccard", "share"])
def test_overlap_equals_sets(measure):
    masks = rng.random((4, 30)) < 0.3
    sets = [set(np.flatnonzero(mask)) for mask in masks]
    overlap = subset_overlap(masks, measure=measure)
    for i, a in enumerate(sets):
        for j, b in enumerate(sets):
            whole = len(a | b) if measure == "jaccard" else len(a)
            assert overlap[i, j] == pytest.approx(len(a & b) / whole)


def test_overlap_of_empty_sets():
    masks = np.array([[False, False], [False, False], [True, False]])
    for measure in ("jaccard", "share"):
        overlap = subset_overlap(masks, measure=measure)
        assert overlap[0, 1] == 1.0
        assert overlap[0, 2] == overlap[2, 0] == 0.0


def test_wrong_masks_are_refused():
    with pytest.raises(InvalidInputError, match=r"must be a boolean array .* int64"):
        subset_overlap(np.ones((2, 3), dtype=np.int64))
    with pytest.raises(InvalidInputError, match="measure must be 'jaccard' or 'share'"):
        subset_overlap(np.ones((2, 3), dtype=bool), measure="dice")


def test_hardest_pictures_are_those_of_highest_sharpness(ensemble, digits):
    display = SubsetOverlapDisplay.from_estimator(ensemble, digits.images, digits.y)
    display.plot_hardest(3)
    assert display.axes_.shape == (3, 3)
    for member, scores in enumerate(ensemble.sharpness_):
        for column, sample in enumerate(np.argsort(scores)[::-1][:3]):
            ax = display.axes_[member, column]
            shown = ax.images[0].get_array()
            np.testing.assert_array_equal(shown, digits.images[sample])
            assert ax.get_title() == f"{digits.y[sample]}\n{scores[sample]:.3g}"
    display.plot_hardest(2, highest=False)
    flattest = digits.images[ensemble.sharpness_[0].argmin()]
    np.testing.assert_array_equal(display.axes_[0, 0].images[0].get_array(), flattest)


def test_pandas_is_read_by_position(ensemble, digits):
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
        pictures = [ax.images[0].get_array() for ax in (want, got)]
        np.testing.assert_array_equal(*pictures)


def test_hardest_pictures_need_pictures(ensemble):
    display = SubsetOverlapDisplay.from_estimator(ensemble)
    with pytest.raises(InvalidInputError, match="needs sharpness and images"):
        display.plot_hardest()
    display.images = [np.zeros((8, 8))] * 3
    with pytest.raises(InvalidInputError, match="3 images but scores of 240 samples"):
        display.plot_hardest()


def test_layouts_of_pictures():
    colour = rng.integers(256, size=(3, 8, 9), dtype=np.uint8)
    np.testing.assert_array_equal(as_picture(colour), colour.transpose(1, 2, 0))
    assert as_picture(colour[:1]).shape == (8, 9)
    assert as_picture(colour.transpose(1, 2, 0)).shape == (8, 9, 3)
    standard = as_picture(rng.normal(size=(3, 8, 9)))
    assert (standard.min(), standard.max()) == (0, 1)
    with pytest.raises(InvalidInputError, match=r"A picture must have .* \(64,\)"):
        as_picture(np.zeros(64))


def test_agreement_matrix_and_its_texts():
    display = MemberAgreementDisplay.from_predictions(PROBAS)
    labels = PROBAS.argmax(2)
    for i in range(5):
        for j in range(5):
            expected = np.mean([a != b for a, b in zip(labels[i], labels[j])])
            assert display.disagreement[i, j] == pytest.approx(expected)
            assert display.text_[i, j].get_text() == f"{expected:.2f}"
    assert display.im_.get_clim() == (0.0, display.disagreement.max())
    assert display.plot(vmax=1.0).im_.get_clim() == (0.0, 1.0)


def test_small_disagreement_is_written_with_more_digits():
    display = MemberAgreementDisplay([[0.0, 0.034], [0.034, 0.0]]).plot()
    assert display.text_[0, 1].get_text() == "0.034"


def test_members_that_agree_can_be_drawn():
    same = np.stack([PROBAS[0], PROBAS[0]])
    display = MemberAgreementDisplay.from_predictions(same)
    assert display.im_.get_clim() == (0.0, 1.0)
    with pytest.raises(InvalidInputError, match=r"n_members\), got \(2,\)"):
        MemberAgreementDisplay([0.1, 0.2]).plot()


def test_every_form_of_history_shows_the_same():
    epochs = [{"epoch": e, "train_loss": 1 / e, "phase": "warmup"} for e in (1, 2, 3)]
    columns = {
        "epoch": [1, 2, 3],
        "train_loss": [1, 1 / 2, 1 / 3],
        "phase": ["warmup"] * 3,
    }
    batches = [record | {"batches": [{"loss": 1}]} for record in epochs]
    for history in ([epochs], [columns], epochs, columns, batches):
        display = TrainingHistoryDisplay.from_history(history)
        assert len(display.lines_) == len(display.lines_[0]) == 1
        line = display.lines_[0][0]
        np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(line.get_ydata(), [1, 1 / 2, 1 / 3])
        assert display.phase_lines_ == []


def test_phases_are_marked_where_they_begin(ensemble):
    display = TrainingHistoryDisplay.from_estimator(ensemble)
    assert [line.get_xdata()[0] for line in display.phase_lines_] == [2.5]
    assert [t.get_text() for t in display.ax_.texts] == ["warmup", "balanced"]
    assert display.plot(phases=False).phase_lines_ == []


def test_history_draws_validation_dashed_in_the_members_colour(ensemble):
    display = TrainingHistoryDisplay.from_estimator(ensemble)
    train, valid = display.lines_
    assert [line.get_color() for line in train] == list(PALETTE[:3])
    assert [line.get_color() for line in valid] == list(PALETTE[:3])
    assert {line.get_linestyle() for line in valid} == {"--"}
    expected = [record["valid_loss"] for record in ensemble.history_[1]]
    np.testing.assert_allclose(valid[1].get_ydata(), expected)
    assert display.ax_.get_ylabel() == "Loss"


def test_missing_records_are_gaps_or_errors():
    epochs = [{"train_loss": 1.0}, {"train_loss": 0.5, "valid_acc": 0.7}]
    display = TrainingHistoryDisplay.from_history([epochs], metric="valid_acc")
    np.testing.assert_array_equal(display.lines_[0][0].get_ydata(), [np.nan, 0.7])
    with pytest.raises(InvalidInputError, match=r"'lr' was not recorded .*train"):
        display.plot(metric="lr")
    with pytest.raises(InvalidInputError, match="history holds no epochs"):
        TrainingHistoryDisplay.from_history([[], []])


def test_members_are_numbered_as_estimators_are(ensemble, digits):
    matrix = MemberAgreementDisplay.from_estimator(ensemble, digits.X)
    names = [f"Member {i}" for i in range(len(ensemble.estimators_))]
    assert [t.get_text() for t in matrix.ax_.get_yticklabels()] == names
    history = TrainingHistoryDisplay.from_estimator(ensemble)
    texts = [t.get_text() for t in history.ax_.get_legend().get_texts()]
    assert texts[: len(names)] == names


@pytest.mark.parametrize("n_members", [3, 12, 30])
def test_values_in_a_matrix_do_not_overlap(n_members):
    masks = rng.random((n_members, 50)) < 0.4
    display = SubsetOverlapDisplay.from_masks(masks)
    display.figure_.draw_without_rendering()
    boxes = [text.get_window_extent() for text in display.text_[0]]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert all(text.get_visible() for text in display.text_.flat)


def test_values_that_would_overlap_on_given_axes_are_left_out():
    ax = plt.figure(figsize=(3, 3)).subplots()
    display = SubsetOverlapDisplay.from_masks(rng.random((20, 50)) < 0.4, ax=ax)
    assert not any(text.get_visible() for text in display.text_.flat)


def test_looks_are_different_beyond_the_colours():
    _, ax = plt.subplots()
    looks = {(colour(i, ax), marker(i)) for i in range(30)}
    assert len(looks) == 30
    epochs = [{"train_loss": 1.0}, {"train_loss": 0.5}]
    display = TrainingHistoryDisplay.from_history([epochs] * 30)
    lines = {(line.get_color(), line.get_marker()) for line in display.lines_[0]}
    assert len(lines) == 30
    # So many names leave most of the figure to the lines.
    display.figure_.draw_without_rendering()
    assert display.ax_.get_position().height > 0.5


def test_a_single_epoch_is_seen():
    display = TrainingHistoryDisplay.from_history([[{"train_loss": 1.0}]])
    assert display.lines_[0][0].get_marker() == "o"


def test_history_is_read_on_a_dark_ground():
    epochs = [
        {"train_loss": 2.0, "valid_loss": 3.0},
        {"train_loss": 1, "valid_loss": 2},
    ]
    with plt.style.context("dark_background"):
        display = TrainingHistoryDisplay.from_history([epochs])
    *_, styles, dashed = display.ax_.get_legend().get_lines()
    assert (styles.get_color(), dashed.get_color()) == ("white", "white")


def test_displays_of_nothing_are_refused():
    epochs = [{"train_loss": 2.0}, {"train_loss": 1.0}]
    with pytest.raises(InvalidInputError, match="metric is empty"):
        TrainingHistoryDisplay.from_history(epochs, metric=[])
    for overlap in (np.ones((1, 2)), np.ones((0, 0)), [1.0]):
        with pytest.raises(InvalidInputError, match=r"overlap must have shape"):
            SubsetOverlapDisplay(overlap).plot()
    with pytest.raises(InvalidInputError, match="disagreement must have shape"):
        MemberAgreementDisplay(np.ones((0, 0))).plot()
    with pytest.raises(InvalidInputError, match="'jaccard' or 'share', got 'x'"):
        SubsetOverlapDisplay([[1.0]], measure="x").plot()
    assert not plt.get_fignums()


def test_long_names_leave_room_for_the_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a layout that was given up
        names = ["a" * 90, "b"]
        display = MemberAgreementDisplay([[0, 0.5], [0.5, 0]], member_names=names)
        display.plot().figure_.canvas.draw()
    assert display.ax_.get_window_extent().width > 0.2 * display.figure_.bbox.width
