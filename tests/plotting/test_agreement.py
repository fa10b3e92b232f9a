"""Displays of the members' disagreement."""

import warnings

import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import MemberAgreementDisplay, TrainingHistoryDisplay
from tests.plotting.made_up import PROBAS


def test_agreement_matrix_and_its_texts_equal_a_loop():
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


def test_colours_of_members_that_agree_end_at_one():
    same = np.stack([PROBAS[0], PROBAS[0]])
    display = MemberAgreementDisplay.from_predictions(same)
    assert display.im_.get_clim() == (0.0, 1.0)
    with pytest.raises(InvalidInputError, match=r"n_members\), got \(2,\)"):
        MemberAgreementDisplay([0.1, 0.2]).plot()


def test_members_are_numbered_as_in_estimators_(ensemble, digits):
    matrix = MemberAgreementDisplay.from_estimator(ensemble, digits.X)
    names = [f"Member {i}" for i in range(len(ensemble.estimators_))]
    assert [t.get_text() for t in matrix.ax_.get_yticklabels()] == names
    history = TrainingHistoryDisplay.from_estimator(ensemble)
    texts = [t.get_text() for t in history.ax_.get_legend().get_texts()]
    assert texts[: len(names)] == names


def test_long_names_leave_room_for_the_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns if the layout fails
        names = ["a" * 90, "b"]
        display = MemberAgreementDisplay([[0, 0.5], [0.5, 0]], member_names=names)
        display.plot().figure_.draw_without_rendering()
    assert display.ax_.get_window_extent().width > 0.2 * display.figure_.bbox.width
