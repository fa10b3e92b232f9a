"""Epochs that a weight average covers, and its values."""

from fractions import Fraction

import pytest
import torch

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.weights import WeightAveraging, updated_average


@pytest.mark.parametrize("n_epochs", [3, 50, 100])
def test_average_covers_the_epochs_that_end_after_its_start(n_epochs):
    for percent in range(100):
        averaging = WeightAveraging(start=percent / 100)
        covered = [e for e in range(n_epochs) if averaging.covers(e, n_epochs)]
        start = Fraction(percent, 100) * n_epochs
        assert covered == [e for e in range(n_epochs) if e + 1 > start]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_floats_are_averaged_and_integers_are_the_last_value(dtype):
    average = None
    for value in (1, 2, 6):
        weights = {"w": torch.tensor([value], dtype=dtype), "n": torch.tensor(value)}
        average = updated_average(average, weights, WeightAveraging("uniform"))
    torch.testing.assert_close(average["weights"]["w"], torch.tensor([3], dtype=dtype))
    assert average["weights"]["n"] == 6


def test_other_values_are_those_of_the_last_epoch():
    average, seen = None, {"calls": []}
    for call in (1, 2):
        seen["calls"].append(call)
        average = updated_average(average, {"extra": seen}, WeightAveraging())
        assert average["weights"]["extra"] == seen
    seen["calls"].append(3)
    assert average["weights"]["extra"] == {"calls": [1, 2]}


@pytest.mark.parametrize("name", ["start", "decay"])
@pytest.mark.parametrize("value", ["0.5", None, 1, -0.1, float("nan")])
def test_start_must_be_a_number_below_one(name, value):
    with pytest.raises(InvalidInputError, match=rf"{name} must be in \[0, 1\), got"):
        WeightAveraging(**{name: value})
