"""Tables and figures of sharpness under controls, of single nets and ensembles."""

import numpy as np
from _reproduce_figures import COLORS, draw_tradeoff
from _reproduce_records import (
    by_method,
    difference,
    groups,
    jackknife,
    mean,
    noise_of,
    seeds_of_run,
)
from _reproduce_rethinking import OUTCOMES, SHARPNESS
from _reproduce_tables import count, marked, plain, signed, table_of
from scipy.stats import spearmanr

__all__ = ["controls_figures", "controls_markdown", "rank_correlation"]

PLAIN = "SGD"
# Heading: (name in the records of nets, factor, digits)
OF_NETS = {
    "accuracy": ("accuracy", 100, 2),
    "corrupted": ("corrupted_accuracy", 100, 2),
    "ECE": ("ece", 1, 3),
    "disagreement": ("disagreement", 1, 3),
    "Fisher-Rao norm": ("fisher_rao", 1, 4),
    "SAM-sharpness": ("sam_sharpness", 1e6, 2),
    "relative flatness": ("relative_flatness", 1, 1),
    "worst-case sharpness": ("worst_case", 1, 3),
}
OF_ENSEMBLES = {
    "accuracy": ("accuracy", 100, 2),
    "corrupted": ("corrupted_accuracy", 100, 2),
    "ECE": ("ece", 1, 3),
    "corrupted ECE": ("corrupted_ece", 1, 3),
    "NLL, tempered": ("nll_after_temperature", 1, 3),
    "DER": ("der", 1, 2),
}
UNITS = {"SAM-sharpness": "SAM-sharpness (1e-6)"}
WAYS = {
    "all": "all nets",
    "within": "within controls",
    "between": "between conditions",
}


def controls_markdown(records):
    """Single nets, ensembles, and rank correlations of sharpness with outcomes."""
    parts = []
    for control in groups(records):
        methods = by_method(records, control)
        title = f"**{control}**, single nets, {count(methods)}{noise_of_nets(records)}"
        nets = {
            UNITS.get(heading, heading): cells(methods, f"net_{name}", factor, digits)
            for heading, (name, factor, digits) in OF_NETS.items()
        }
        ensembles = {
            heading: cells(methods, name, factor, digits)
            for heading, (name, factor, digits) in OF_ENSEMBLES.items()
        }
        nets |= over_sgd(records, methods, "net_")
        ensembles |= over_sgd(records, methods, "")
        parts += [title, table_of(methods, nets)]
        parts += [f"**{control}, ensembles**", table_of(methods, ensembles)]
    n_nets = len(next(iter(records))["nets"]["accuracy"])
    parts += [
        f"**rank correlations, single nets**, {len(records) * n_nets} of them "
        "(Spearman; intervals by a jackknife over seeds)",
        correlation_table(records, of_nets),
        f"**rank correlations, ensembles**, {len(records)} of them, by the mean "
        "sharpness of their members",
        correlation_table(records, of_ensembles),
    ]
    return "\n\n".join(parts) + "\n"


def cells(methods, name, factor, digits):
    return {m: plain(factor * mean(runs, name), digits) for m, runs in methods.items()}


def over_sgd(records, methods, prefix):
    """Columns of what methods are ahead of SGD by, under the same control."""
    columns = {}
    if PLAIN in methods:
        for heading, name in (("clean", "accuracy"), ("", "corrupted_accuracy")):
            found = {
                m: difference(records, runs, methods[PLAIN], prefix + name)
                for m, runs in methods.items()
                if m != PLAIN
            }
            columns[f"{heading} over {PLAIN}".strip()] = marked(found)
    return columns


def noise_of_nets(records):
    """What the intervals come from."""
    noise = noise_of(records, "net_corrupted_accuracy")
    if noise.dof == 0:
        return ""
    return (
        f"; pooled standard deviation {100 * noise.sd:.2f} points of corrupted accuracy "
        f"of single nets, {noise.dof} degrees of freedom"
    )


def of_nets(records, sharpness, outcome):
    """[(control, condition, x, y)] of every single net."""
    return [
        (record["group"], record["method"], x, y)
        for record in records
        for x, y in zip(record["nets"][sharpness], record["nets"][outcome])
    ]


def of_ensembles(records, sharpness, outcome):
    """[(control, condition, x, y)] of every ensemble."""
    return [
        (r["group"], r["method"], r[f"net_{sharpness}"], r[outcome]) for r in records
    ]


def rank_correlation(points, way):
    """Spearman's of points (control, method, x, y).

    Parameters
    ----------
    points : list of tuple
    way : {"all", "within", "between"}
        Over all points, the mean over controls of the correlation within each, or over
        the means of the conditions (a control with an optimizer).
    """
    if way == "within":
        controls = list(dict.fromkeys(point[0] for point in points))
        each = [
            rank_correlation([p for p in points if p[0] == control], "all")
            for control in controls
        ]
        return float(np.mean(each))
    pairs = [point[2:] for point in points]
    if way == "between":
        conditions = list(dict.fromkeys(point[:2] for point in points))
        pairs = [
            np.mean([p[2:] for p in points if p[:2] == condition], axis=0)
            for condition in conditions
        ]
    if len(pairs) < 3:
        return np.nan
    return float(spearmanr(*np.transpose(pairs)).statistic)


def correlation_table(records, points_of):
    """A row for each sharpness; columns by outcome and way."""
    columns, seeds = {}, seeds_of_run(records)
    for outcome, shown in OUTCOMES.items():
        for way, name in WAYS.items():
            columns[f"{shown}, {name}"] = {
                heading: signed(
                    jackknife(
                        lambda kept, s=sharpness, o=outcome, w=way: rank_correlation(
                            points_of([r for r in records if r["seed"] in kept], s, o),
                            w,
                        ),
                        seeds,
                    ),
                    factor=1,
                )
                for sharpness, heading in SHARPNESS.items()
            }
    return table_of(dict.fromkeys(SHARPNESS.values()), columns)


def controls_figures(records):
    """Outcomes of single nets against sharpness; diversity against sharpness."""
    return {"": draw_scatter(records), "_tradeoff": draw_tradeoff(records)}


def draw_scatter(records):
    """A row for each outcome, a column for each sharpness, a point for each net."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(12.4, 11), layout="constrained")
    axes = figure.subplots(len(OUTCOMES), len(SHARPNESS), sharex="col", sharey="row")
    controls = groups(records)
    optimizers = list(dict.fromkeys(record["method"] for record in records))
    for i, (outcome, shown) in enumerate(OUTCOMES.items()):
        for j, (sharpness, heading) in enumerate(SHARPNESS.items()):
            ax = axes[i, j]
            for control, method, x, y in of_nets(records, sharpness, outcome):
                ax.plot(
                    *(x, y),
                    color=COLORS[controls.index(control) % len(COLORS)],
                    marker="os^D"[optimizers.index(method) % 4],
                    ms=5,
                    alpha=0.7,
                )
            values = [point[2] for point in of_nets(records, sharpness, outcome)]
            if max(values) > 10 * min(values) > 0:
                ax.set_xscale("log")
                ax.xaxis.set_minor_formatter(NullFormatter())
            ax.grid(color="0.9")
            ax.spines[["top", "right"]].set_visible(False)
            if i == len(OUTCOMES) - 1:
                ax.set_xlabel(heading)
        axes[i, 0].set_ylabel(shown)
    handles = [
        axes[0, 0].plot([], [], "o", color=COLORS[i % len(COLORS)], label=control)[0]
        for i, control in enumerate(controls)
    ]
    handles += [
        axes[0, 0].plot([], [], "os^D"[i % 4], color="0.4", label=method)[0]
        for i, method in enumerate(optimizers)
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), frameon=False
    )
    return figure
