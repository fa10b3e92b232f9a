"""Figures from the records of a reproduction."""

from functools import partial

import numpy as np
from _reproduce_methods import BASELINE
from _reproduce_records import (
    are_sizes,
    at_equal_cost,
    by_method,
    difference,
    groups,
    has_costs,
    is_sweep,
    level,
    mean,
)

__all__ = ["draw", "draw_tradeoff"]

BLUE, ORANGE, *_ = COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
# What is drawn against the number of members, and against rho: title, name, factor.
OF_SIZE = (
    ("Corrupted accuracy (%)", "corrupted_accuracy", 100),
    ("Improvement over members (EIR)", "eir", 1),
    ("NLL, corrupted", "corrupted_nll", 1),
    ("ECE, corrupted", "corrupted_ece", 1),
)
OF_RHO = (
    ("Sharpness", "sharpness", 1),
    ("Diversity (DER)", "der", 1),
    ("Improvement over members (EIR)", "eir", 1),
    ("Corrupted accuracy (%)", "corrupted_accuracy", 100),
)


def draw(records):
    """Sizes, a sweep over rho, differences to the deep ensemble, or the trade-off."""
    if are_sizes(records):
        return draw_sizes(records)
    if is_sweep(records):
        return draw_sweep(records)
    compared = panels(records)
    return draw_differences(compared) if compared else cloud(records)


def panels(records):
    """{title: (names, metric -> their differences to the baseline)}."""
    found, others = {}, {}
    for group in groups(records):
        methods = by_method(records, group)
        names = [name for name in methods if name != BASELINE and BASELINE in methods]
        others |= {name: methods[name] for name in names}
        if names:
            found[group] = names, partial(against_baseline, records, methods, names)
    at_cost = partial(at_their_costs, records, others)
    # More than the group "same cost" has, if deep ensembles cover the costs of all.
    if has_costs(records) and np.isfinite(at_cost("accuracy")).all():
        found.pop("same cost", None)
        found["same cost"] = list(others), at_cost
    return found


def against_baseline(records, methods, names, metric):
    """Means and halves (K, 2)."""
    found = [
        difference(records, methods[name], methods[BASELINE], metric) for name in names
    ]
    return np.array(found)[:, :2]


def at_their_costs(records, methods, metric):
    """Means and halves (K, 2)."""
    found = [at_equal_cost(records, runs, metric) for runs in methods.values()]
    return np.array(found)[:, :2]


def draw_differences(panels):
    """A panel for each group: clean and corrupted accuracy against the baseline."""
    from matplotlib.figure import Figure

    rows = max(len(names) for names, _ in panels.values())
    figure = Figure(
        figsize=(5.6 * len(panels), 1.4 + 0.32 * rows), layout="constrained"
    )
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, (names, differences)) in zip(axes, panels.items()):
        order = np.argsort(-differences("corrupted_accuracy")[:, 0], kind="stable")
        ax.axvline(0, color="0.5", lw=1)
        for metric, label, color, shift in (
            ("accuracy", "clean", BLUE, -0.15),
            ("corrupted_accuracy", "corrupted", ORANGE, 0.15),
        ):
            pairs = differences(metric)[order] * 100
            at = np.arange(len(names)) + shift
            ax.errorbar(
                pairs[:, 0],
                at,
                xerr=np.nan_to_num(pairs[:, 1]),
                fmt="o",
                ms=4,
                color=color,
                elinewidth=1.2,
                label=label,
            )
        ax.set_yticks(np.arange(len(names)), [names[i] for i in order])
        ax.set_ylim(len(names) - 0.5, -0.5)  # the first on top
        ax.set_title(title)
        ax.locator_params(axis="x", nbins=6)
        ax.set_xlabel("Points of accuracy over a deep ensemble")
    return finished(figure, axes, grid="x")


def draw_sizes(records):
    """Four measures against the number of members."""
    curves = {}
    for group in groups(records):
        for method, runs in by_method(records, group).items():
            curves.setdefault(method, {})[int(group.split()[0])] = runs
    return draw_curves(records, curves, "Members", OF_SIZE, apart=0.08)


def draw_sweep(records):
    """Four measures against rho, a line for each group."""
    curves = {
        group: {
            float(method.rpartition(" ")[2]): runs
            for method, runs in by_method(records, group).items()
        }
        for group in groups(records)
    }
    return draw_curves(records, curves, "rho", OF_RHO, log=True)


def draw_curves(records, curves, x_label, panels, *, log=False, apart=0.0):
    """Means with 95 % intervals of {label: {x: {seed: record}}}, a panel a measure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for ax, (title, name, factor) in zip(axes, panels):
        for i, (label, runs_at) in enumerate(curves.items()):
            places = sorted(runs_at)
            found = [level(records, runs_at[place], name) for place in places]
            means = factor * np.array([value.mean for value in found])
            halves = factor * np.array([value.half for value in found])
            at = np.array(places) + apart * (i - 1)  # beside each other
            style = {"color": COLORS[i], "marker": "os^D"[i]}
            ax.errorbar(at, means, halves, label=label, ms=5, lw=1.4, **style)
        if log:
            ax.set_xscale("log")
        ticks = sorted({x for runs_at in curves.values() for x in runs_at})
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_xlabel(x_label)
        ax.set_title(title, fontsize=11)
    return finished(figure, axes, grid="y")


def finished(figure, axes, grid):
    """The figure with quiet axes, and one legend for all of them."""
    for ax in axes:
        ax.grid(axis=grid, color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def draw_tradeoff(records):
    """Sharpness against diversity, a point for each method.

    Axes are logarithmic over rho, whose values are the labels then.
    """
    from matplotlib.figure import Figure

    from sklearn_sharpbalance.plotting import TradeoffDisplay

    points = [
        (group, method, runs)
        for group in groups(records)
        for method, runs in by_method(records, group).items()
    ]
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    TradeoffDisplay(
        [mean(runs, "sharpness") for _, _, runs in points],
        [mean(runs, "der") for _, _, runs in points],
        color=[mean(runs, "eir") for _, _, runs in points],
        groups=[group for group, _, _ in points],
        labels=[method.rpartition(", rho ")[2] for _, method, _ in points],
        diversity_name="Diversity (DER)",
        color_name="Ensemble improvement (EIR)",
    ).plot(figure.subplots())
    return figure


def cloud(records):
    """Sharpness against diversity, a point for each method, coloured by EIR."""
    from matplotlib.figure import Figure

    from sklearn_sharpbalance.plotting import TradeoffDisplay

    kinds = groups(records)
    figure = Figure(figsize=(5.2 * len(kinds), 4.2), layout="constrained")
    for ax, group in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds):
        methods = by_method(records, group)
        sharpness, diversity, gains = (
            [mean(runs, name) for runs in methods.values()]
            for name in ("sharpness", "der", "eir")
        )
        TradeoffDisplay(
            sharpness,
            diversity,
            color=gains,
            labels=[method.rpartition(", ")[2] for method in methods],
            diversity_name="Diversity (DER)",
            color_name="Ensemble improvement (EIR)",
        ).plot(ax)
        ax.set_title(group)
    return figure
