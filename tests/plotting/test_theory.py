"""Displays of the theorems and of simulations."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance import theory
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import TheoryDisplay
from sklearn_sharpbalance.plotting._base import PALETTE

SIZES = {"n": 60, "d": 20}
RHO = [0.05, 0.1, 0.2]


def test_curves_equal_theorem_1():
    display = TheoryDisplay.from_theory(3, 0.1, RHO, radius=0.3, **SIZES)
    for i, rho in enumerate(RHO):
        model = {"eta": 0.1, "rho": rho, **SIZES}
        lower, upper = theory.sam_sharpness_bounds(3, radius=0.3, **model)
        assert display.diversity[i] == theory.sam_diversity(3, **model)
        assert display.upper[i] == upper
        assert display.lower[i] == lower
    np.testing.assert_array_equal(display.upper_line_.get_xdata(), display.upper)
    np.testing.assert_array_equal(display.upper_line_.get_ydata(), display.diversity)


def test_curves_equal_theorem_2():
    steps = [1, 2, 4]
    display = TheoryDisplay.from_theory(steps, 0.1, 0.1, n_subsets=4, **SIZES)
    for i, k in enumerate(steps):
        model = {"eta": 0.1, "rho": 0.1, "n_subsets": 4, **SIZES}
        bound = theory.subset_sharpness_bound(k, radius=0.5, **model)
        assert display.upper[i] == bound
        assert display.diversity[i] == theory.subset_diversity(k, **model)
    assert display.lower is None
    assert display.lower_line_ is None


def test_points_equal_the_simulation():
    kwargs = {"n_matrices": 4, "n_starts": 5, "random_state": 0, **SIZES}
    display = TheoryDisplay.from_simulation(2, 0.1, RHO, **kwargs)
    run = theory.simulate(2, 0.1, RHO, **kwargs)
    line, _, bars = display.points_
    np.testing.assert_allclose(line.get_xdata(), run.sharpness)
    np.testing.assert_allclose(line.get_ydata(), run.diversity)
    assert len(bars) == 2
    spread = bars[0].get_segments()[1][:, 0]  # both ends of the bar
    np.testing.assert_allclose(np.diff(spread), 2 * run.sharpness_error[1])


def test_negative_lower_bounds_are_left_out():
    display = TheoryDisplay([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], lower=[-1.0, 0.5, 1.0])
    display.plot()
    np.testing.assert_array_equal(display.lower_line_.get_xdata(), [0.5, 1.0])
    np.testing.assert_array_equal(display.lower_line_.get_ydata(), [2.0, 3.0])
    assert display.plot(bounds="upper").lower_line_ is None
    assert TheoryDisplay([1.0], [5.0], lower=[-1.0]).plot().lower_line_ is None
    with pytest.raises(InvalidInputError, match="bounds must be 'both' or 'upper'"):
        display.plot(bounds="lower")


def test_methods_on_one_axes_have_different_colours():
    first = TheoryDisplay.from_theory(2, 0.1, RHO, name="SAM", **SIZES)
    second = TheoryDisplay.from_theory(
        2, 0.1, RHO, n_subsets=3, name="SharpBalance", ax=first.ax_, **SIZES
    )
    assert first.upper_line_.get_color() == PALETTE[0]
    assert second.upper_line_.get_color() == PALETTE[1]
    texts = [t.get_text() for t in first.ax_.get_legend().get_texts()]
    assert texts[-1] == "SharpBalance, upper bound"


def test_grids_of_two_dimensions_are_flattened_by_rows():
    k, rho = [[1], [2]], [0.1, 0.2]
    options = {"n_matrices": 4, "n_starts": 5, "random_state": 0, **SIZES}
    display = TheoryDisplay.from_simulation(k, 0.1, rho, **options)
    flat = TheoryDisplay.from_simulation([1, 1, 2, 2], 0.1, rho + rho, **options)
    for name in ("diversity", "upper", "simulated_sharpness", "diversity_error"):
        np.testing.assert_array_equal(getattr(display, name), getattr(flat, name))
    theorem = TheoryDisplay.from_theory(k, 0.1, rho, **SIZES)
    np.testing.assert_array_equal(theorem.upper, flat.upper)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((2.7, 0.1, 0.1), r"^k must be integers and >= 0, got 2\.7"),
        ((2, [0.1, np.nan], 0.1), "^eta must be finite"),
        (([1, 2, 3], 0.1, [0.1, 0.2]), "broadcast to one shape"),
        ((2, 0.1, []), "at least one setting"),
    ],
)
@pytest.mark.parametrize("constructor", ["from_theory", "from_simulation"])
def test_invalid_grids_raise(constructor, grid, message):
    with pytest.raises(InvalidInputError, match=message):
        getattr(TheoryDisplay, constructor)(*grid, **SIZES)


def test_infinite_settings_are_left_out_and_listed():
    display = TheoryDisplay.from_theory(
        6, [0.01, 1e60, 0.02], 0.1, labels=["a", "b", "c"], **SIZES
    )
    display.figure_.draw_without_rendering()
    assert display.upper[1] == np.inf
    assert display.ax_.get_xlim()[1] < 2 * display.upper[0]
    texts = [t.get_text() for t in display.ax_.get_legend().get_texts()]
    assert texts[-1] == "off the axes: b"
    assert [t.get_text() for t in display.ax_.texts] == ["a", "c"]


@pytest.mark.filterwarnings("error")
def test_diverging_simulations_do_not_change_the_axes():
    display = TheoryDisplay.from_simulation(
        [1, 400], 1.0, 1.0, n_matrices=3, n_starts=3, random_state=0, **SIZES
    )
    display.figure_.draw_without_rendering()
    left, right = display.ax_.get_xlim()
    assert left < display.simulated_sharpness[0] < right < np.inf
    assert display.simulated_sharpness[1] == np.inf


def test_invalid_arrays_raise_before_a_figure_is_made():
    with pytest.raises(InvalidInputError, match="one name for each of 2 settings"):
        TheoryDisplay([1, 2], [1, 2], labels=["a"]).plot()
    with pytest.raises(InvalidInputError, match=r"upper must have the shape \(2,\)"):
        TheoryDisplay([1, 2], [1]).plot()
    assert not plt.get_fignums()
