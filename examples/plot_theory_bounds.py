r"""
The trade-off in theory: two theorems and a simulation
======================================================

The paper proves for linear models on random data that SAM lowers sharpness and diversity
together, and that members which train on different parts of the data lose less diversity
for the same sharpness. The library has both theorems as functions and simulates the model
that they are about. This example compares them.

A member starts at random weights :math:`\theta_0` and takes k steps of SAM with step
size :math:`\eta` and radius :math:`\rho` on a Gaussian matrix of 3000 samples and 150
features.
"""

# %%
# Two curves (figure 1b of the paper)
# -----------------------------------
# Each point is one :math:`\rho`, from 0 at the upper right to 0.3. Along a curve, more SAM
# is flatter and less diverse. The curves of members that each train on one of 3 or 10 parts
# of the data lie on or above that of members on all of it: at equal sharpness they are more
# diverse. Step sizes differ so that the curves cover the same range of sharpness.
import os
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np

from sklearn_sharpbalance.theory import (
    sam_diversity,
    sam_sharpness_bounds,
    simulate,
    subset_diversity,
    subset_sharpness_bound,
)

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
N_MATRICES = 3 if FAST else 50
SIZES = {"n": 3000, "d": 150}


def draw_theory(ax, diversity, upper, lower=None, run=None, name=None):
    """Draw diversity against bounds of the sharpness, and a simulation as points."""
    prefix = "" if name is None else f"{name}, "
    (line,) = ax.plot(upper, diversity, marker=".", label=f"{prefix}upper bound")
    look = {"color": line.get_color(), "marker": "."}
    if lower is not None:
        shown = lower > 0  # a negative bound says nothing
        label = f"{prefix}lower bound"
        ax.plot(lower[shown], diversity[shown], ls="--", label=label, **look)
    if run is not None:
        ax.errorbar(
            run.sharpness,
            run.diversity,
            xerr=run.sharpness_error,
            yerr=run.diversity_error,
            fmt="o",
            mec="black",
            mew=0.6,
            capsize=2,
            color=line.get_color(),
            label=f"{prefix}simulated",
        )
    ax.set(xlabel="Sharpness", ylabel="Diversity")
    ax.spines[["top", "right"]].set_visible(False)


def theorem_1(rho, **model):
    """Diversity, and lower and upper bound of the sharpness, for each rho."""
    model |= SIZES
    diversity = np.array([sam_diversity(4, rho=r, **model) for r in rho])
    bounds = [sam_sharpness_bounds(4, rho=r, radius=0.5, **model) for r in rho]
    return diversity, *np.transpose(bounds)


def theorem_2(rho, **model):
    """Diversity, and upper bound of the sharpness, for each rho."""
    model |= SIZES
    diversity = np.array([subset_diversity(4, rho=r, **model) for r in rho])
    upper = [subset_sharpness_bound(4, rho=r, radius=0.5, **model) for r in rho]
    return diversity, np.array(upper)


rho = np.linspace(0, 0.3, 7)
diversity, lower, upper = theorem_1(rho, eta=0.005)
fig, ax = plt.subplots(figsize=(6, 4.2), layout="constrained")
draw_theory(ax, diversity, upper, name="SAM")
for parts, eta in [(3, 0.02), (10, 0.1)]:
    name = f"SAM on one of {parts} parts"
    draw_theory(ax, *theorem_2(rho, eta=eta, n_subsets=parts), name=name)
ax.set_xlim(4, 10.5)
ax.set_title("Parts of the data: more diversity for the same sharpness")
ax.legend()

# %%
# Theorem and simulation (figure 2)
# ---------------------------------
# The theorem gives the diversity exactly and two bounds of the sharpness. The simulated
# sharpness lies between them.
fig, ax = plt.subplots(figsize=(6, 4.2), layout="constrained")
run = simulate(4, 0.005, rho, n_matrices=N_MATRICES, random_state=0, **SIZES)
draw_theory(ax, diversity, upper, lower, run, name="SAM")
ax.set_title(f"Theorem 1 and {N_MATRICES} simulated data sets")
ax.legend()

# %%
# Nine settings of Theorem 1 (figure 10)
# --------------------------------------
# One simulation covers the whole grid: all settings share their matrices. With the step
# sizes that the paper prints, most of these models do not converge, and both sharpness
# and diversity *grow* with :math:`\rho` (see the numbers on the axes). The theorem holds
# there as well, but the trade-off is in the figure above. The lower bound is negative in
# these settings and is not drawn.


def short(value):
    """Format a number, a large one with a power of ten."""
    if value < 1e3:
        return f"{value:.3g}"
    digits, power = f"{value:.1e}".split("e+")
    return rf"${digits} \cdot 10^{{{int(power)}}}$"


def ends(axis, values):
    """Label the two ends of a curve: the panels are too small for more."""
    places = [values.min(), values.max()]
    axis.set_ticks(places, [short(value) for value in places], fontsize=8)
    axis.set_ticks([], minor=True)


def grid_figure(steps, etas, diversity, upper, run, title):
    """A panel for each number of steps and step size, a point for each rho."""
    fig, axes = plt.subplots(3, 3, figsize=(9, 7.5), layout="constrained")
    for i, j in np.ndindex(3, 3):
        ax = axes[i, j]
        found = SimpleNamespace(
            sharpness=run.sharpness[i, j],
            diversity=run.diversity[i, j],
            sharpness_error=None,
            diversity_error=None,
        )
        draw_theory(ax, diversity[i, j], upper[i, j], run=found)
        if (i, j) == (0, 0):
            ax.legend()
        ax.set_title(rf"$k = {steps[i]}$, $\eta = {etas[j]}$", fontsize=10)
        ax.set(xscale="log", yscale="log", xlabel="", ylabel="")
        ends(ax.xaxis, upper[i, j])
        ends(ax.yaxis, diversity[i, j])
    fig.supxlabel("Sharpness")
    fig.supylabel("Diversity")
    fig.suptitle(title)


def over_grid(function, steps, etas, rhos, **options):
    """Values of a theorem, of shape (steps, etas, rhos)."""
    rows = [
        [[function(k, eta=e, rho=r, **options) for r in rhos] for e in etas]
        for k in steps
    ]
    return np.array(rows)


steps, etas, rhos = [2, 4, 8], [0.1, 0.05, 0.01], [0.3, 0.35, 0.4, 0.45, 0.5]
run = simulate(
    *np.ix_(steps, etas, rhos), n_matrices=N_MATRICES, random_state=0, **SIZES
)
diversity = over_grid(sam_diversity, steps, etas, rhos, **SIZES)
bounds = over_grid(sam_sharpness_bounds, steps, etas, rhos, radius=0.5, **SIZES)
upper = bounds[..., 1]
title = r"Theorem 1, $\rho$ from 0.3 to 0.5"
grid_figure(steps, etas, diversity, upper, run, title)

# %%
inside = (bounds[..., 0] <= run.sharpness) & (run.sharpness <= upper)
print(f"{inside.mean():.0%} of the simulated sharpness lies within the bounds")
error = np.abs(run.diversity / diversity - 1)
print(f"diversity is off by {np.median(error):.1%} in the median")

# %%
# Nine settings of Theorem 2 (figure 11)
# --------------------------------------
# Ten parts of 300 samples. The constant that the paper prints counts some patterns of
# equal indices wrongly; the derived one is what the simulation finds.
steps, etas, rhos = [4, 8, 12], [0.5, 0.3, 0.1], [0.4, 0.6, 0.8, 1.0]
parts = {"n_subsets": 10, **SIZES}
run = simulate(
    *np.ix_(steps, etas, rhos), n_matrices=N_MATRICES, random_state=0, **parts
)
diversity = over_grid(subset_diversity, steps, etas, rhos, **parts)
upper = over_grid(subset_sharpness_bound, steps, etas, rhos, radius=0.5, **parts)
title = r"Theorem 2 with 10 parts, $\rho$ from 0.4 to 1"
grid_figure(steps, etas, diversity, upper, run, title)

# %%
for variant in ("derived", "printed"):
    limit = over_grid(
        subset_sharpness_bound, steps, etas, rhos, radius=0.5, variant=variant, **parts
    )
    fraction = (run.sharpness <= limit).mean()
    print(f"{variant}: {fraction:.0%} of the simulated sharpness lies below the bound")
