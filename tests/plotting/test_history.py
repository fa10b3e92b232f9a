"""Displays of the training history."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import TrainingHistoryDisplay
from sklearn_sharpbalance.plotting._base import PALETTE, colour, marker


def test_records_and_tables_are_drawn_alike():
    epochs = [{"epoch": e, "train_loss": 1 / e, "phase": "warmup"} for e in (1, 2, 3)]
    batches = [record | {"batches": [{"loss": 1}]} for record in epochs]
    for history in ([epochs], [batches], [pd.DataFrame(epochs)]):
        display = TrainingHistoryDisplay(history).plot()
        assert len(display.lines_) == len(display.lines_[0]) == 1
        line = display.lines_[0][0]
        np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(line.get_ydata(), [1, 1 / 2, 1 / 3])
        assert display.phase_lines_ == []


def test_phases_are_marked_at_their_beginning(ensemble):
    display = TrainingHistoryDisplay.from_estimator(ensemble)
    assert [line.get_xdata()[0] for line in display.phase_lines_] == [2.5]
    assert [t.get_text() for t in display.ax_.texts] == ["warmup", "balanced"]


def test_validation_loss_is_dashed_in_the_members_colour():
    members = [
        pd.DataFrame({"train_loss": [2, i], "valid_loss": [3, i]}) for i in range(3)
    ]
    display = TrainingHistoryDisplay(members).plot()
    train, valid = display.lines_
    assert [line.get_color() for line in train] == list(PALETTE[:3])
    assert [line.get_color() for line in valid] == list(PALETTE[:3])
    assert {line.get_linestyle() for line in valid} == {"--"}
    np.testing.assert_allclose(valid[1].get_ydata(), [3, 1])
    assert display.ax_.get_ylabel() == "Loss"


def test_missing_records_are_nan_or_raise():
    epochs = [{"train_loss": 1.0}, {"train_loss": 0.5, "valid_acc": 0.7}]
    display = TrainingHistoryDisplay([epochs]).plot(metric="valid_acc")
    np.testing.assert_array_equal(display.lines_[0][0].get_ydata(), [np.nan, 0.7])
    with pytest.raises(InvalidInputError, match=r"'lr' was not recorded .*train"):
        display.plot(metric="lr")
    with pytest.raises(InvalidInputError, match="history has no epochs"):
        TrainingHistoryDisplay([[], []]).plot()
    with pytest.raises(InvalidInputError, match="metric is empty"):
        display.plot(metric=[])


def test_thirty_members_have_different_lines():
    _, ax = plt.subplots()
    looks = {(colour(i, ax), marker(i)) for i in range(30)}
    assert len(looks) == 30
    epochs = [{"train_loss": 1.0}, {"train_loss": 0.5}]
    display = TrainingHistoryDisplay([epochs] * 30).plot()
    lines = {(line.get_color(), line.get_marker()) for line in display.lines_[0]}
    assert len(lines) == 30
    # The names leave most of the figure to the lines.
    display.figure_.draw_without_rendering()
    assert display.ax_.get_position().height > 0.5


def test_single_epoch_has_a_marker():
    display = TrainingHistoryDisplay([[{"train_loss": 1.0}]]).plot()
    assert display.lines_[0][0].get_marker() == "o"
