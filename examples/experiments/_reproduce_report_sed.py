"""Tables and figures of heads on a frozen trunk (SED and its rivals)."""

import re

import numpy as np
from _reproduce_figures import BLUE, COLORS, ORANGE, finished
from _reproduce_methods import SHALLOW
from _reproduce_records import (
    by_method,
    difference,
    groups,
    interval,
    mean,
    noise_of,
    seeds_of_run,
)
from _reproduce_tables import count, marked, plain, rows_of, table_of

__all__ = ["by_score", "heads_figures", "heads_markdown"]

# Heading: prefix in the records
SETS = {
    "clean": "",
    "severity 1": "severity_1_",
    "severity 5": "severity_5_",
    "held-out classes": "classes_",
    "digits": "digits_",
}
FOREIGN = {name: prefix for name, prefix in SETS.items() if prefix}
PREDICTORS = {
    "oracle member": "oracle_accuracy",
    "ensemble": "accuracy",
    "uniform soup": "soup_accuracy",
}
SCORES = ("BMA", "PDS")
USUAL_LAMBDA = 0.1


def heads_markdown(records):
    """Diversity, accuracy and detection of one size; detection and cost of all."""
    largest = main_group(records)
    methods = by_method(records, largest)
    noise = noise_of(records, "corrupted_accuracy")
    title = f"**{largest}**, {count(methods)}"
    if noise.dof and len(seeds_of_run(records)) > 1:
        title += (
            f"; pooled standard deviation {100 * noise.sd:.2f} points of corrupted "
            f"accuracy, {noise.dof} degrees of freedom"
        )
    scored = by_score(records)
    parts = [
        title,
        "Number of unique predictions (table 1 of the paper):",
        table_of(methods, unique_columns(records, methods)),
        "Accuracy in percent (table 2):",
        table_of(methods, accuracy_columns(records, methods)),
        "AUROC of foreign pictures (table 3):",
        table_of(by_method(scored, largest), detection_columns(scored, largest)),
        f"**All sizes**, {count(methods)}",
        "\n".join(size_lines(records)),
    ]
    return "\n\n".join(parts) + "\n"


def main_group(records):
    """The group with the most methods."""
    return max(groups(records), key=lambda group: len(by_method(records, group)))


def by_score(records):
    """Two records of each: as it detects by BMA, and by PDS.

    A score is one more method then: scores and methods are compared in the same way.
    """
    kept = ("group", "seed", "n_heads")
    found = []
    for record in records:
        for score in SCORES:
            areas = {
                f"{prefix}auroc": record[f"{prefix}{score.lower()}_auroc"]
                for prefix in FOREIGN.values()
            }
            areas["auroc"] = float(np.mean(list(areas.values())))
            if score == "BMA":
                alone = [record[f"{prefix}member_auroc"] for prefix in FOREIGN.values()]
                areas["member_auroc"] = float(np.mean(alone))
            own = {name: record[name] for name in kept}
            method = {"method": f"{record['method']}, {score}", "score": score}
            found.append(own | method | areas)
    return found


def unique_columns(records, methods):
    columns = {
        heading: {
            m: plain(mean(runs, f"{prefix}unique"), 2) for m, runs in methods.items()
        }
        for heading, prefix in SETS.items()
    }
    for heading, prefix in (("clean", ""), ("severity 5", "severity_5_")):
        found = over(records, methods, SHALLOW, f"{prefix}unique")
        if found:
            columns[f"{heading} over {SHALLOW}"] = marked(found, factor=1)
    return columns


def accuracy_columns(records, methods):
    columns = {}
    for kind, prefix in (("clean", ""), ("corrupted", "corrupted_")):
        for heading, name in PREDICTORS.items():
            columns[f"{heading}, {kind}"] = {
                m: plain(100 * mean(runs, prefix + name), 2)
                for m, runs in methods.items()
            }
    for heading, name in PREDICTORS.items():
        found = over(records, methods, SHALLOW, f"corrupted_{name}")
        if found:
            columns[f"{heading}, corrupted, over {SHALLOW}"] = marked(found)
    return columns


def detection_columns(scored, group):
    """Columns of ``scored`` records, whose methods end in the name of the score."""
    methods = by_method(scored, group)
    columns = {
        heading: {
            m: plain(mean(runs, f"{prefix}auroc"), 3) for m, runs in methods.items()
        }
        for heading, prefix in (FOREIGN | {"mean": ""}).items()
    }
    columns["mean, one head alone"] = {
        m: plain(mean(runs, "member_auroc"), 3) for m, runs in methods.items()
    }
    own = {
        m: difference(scored, runs, methods[m.replace(", PDS", ", BMA")], "auroc")
        for m, runs in methods.items()
        if m.endswith(", PDS")
    }
    columns["mean, PDS over BMA"] = marked(own, factor=1, digits=3)
    found = over(scored, methods, f"{SHALLOW}, BMA", "auroc")
    if found:
        columns[f"mean over {SHALLOW}, BMA"] = marked(found, factor=1, digits=3)
    return columns


def over(records, methods, other, metric):
    """{method: Difference} to another method."""
    if other not in methods:
        return {}
    return {
        method: difference(records, runs, methods[other], metric)
        for method, runs in methods.items()
        if method != other
    }


def size_lines(records):
    """Lines of the table over sizes; what the pair term adds to a step is its cost."""
    scored, lines = by_score(records), []
    for group in sorted(groups(records), key=size_of):
        methods = {
            m: runs
            for m, runs in by_method(records, group).items()
            if lambda_of(m) in (0, USUAL_LAMBDA)
        }
        areas = by_method(scored, group)
        columns = {
            "members": dict.fromkeys(methods, str(size_of(group))),
            "unique, severity 5": {
                m: plain(mean(runs, "severity_5_unique"), 2)
                for m, runs in methods.items()
            },
        }
        for score in SCORES:
            columns[f"AUROC, {score}"] = {
                m: plain(mean(areas[f"{m}, {score}"], "auroc"), 3) for m in methods
            }
        columns["ms a step"] = {
            m: plain(mean(runs, "step_ms"), 2) for m, runs in methods.items()
        }
        lines += rows_of(methods, columns, with_head=not lines)
    return lines


def size_of(group):
    return int(group.split()[0])


def lambda_of(method):
    """The weight of the pair term of SED; None for another method."""
    found = re.fullmatch(r"SED-A2D, lambda ([\d.]+)", method)
    return float(found[1]) if found else None


def heads_figures(records):
    """Figure 3 (lambda), figure 4 (members), and the scores behind the AUROC.

    A run that was cut short may lack the first two.
    """
    figures = {}
    weights = [lambda_of(record["method"]) for record in records]
    if any(weight is not None for weight in weights):
        figures[""] = draw_lambda(records)
    if USUAL_LAMBDA in weights:
        figures["_members"] = draw_members(records)
    return figures | {"_scores": draw_scores(records)}


def draw_lambda(records):
    """AUROC of both scores by foreign set, and PDS, against lambda."""
    group = main_group(records)
    methods = by_method(records, group)
    names = sorted((m for m in methods if lambda_of(m) is not None), key=lambda_of)
    areas = by_method(by_score(records), group)
    labels = [f"{lambda_of(name):g}" for name in names]
    panels = {
        f"AUROC, {heading}": {
            score: [values(areas[f"{m}, {score}"], f"{prefix}auroc") for m in names]
            for score in SCORES
        }
        for heading, prefix in FOREIGN.items()
    }
    panels["Mean PDS"] = {
        heading: [values(methods[m], f"{prefix}pds") for m in names]
        for heading, prefix in SETS.items()
    }
    return draw_panels(panels, range(len(names)), labels, "lambda")


def draw_members(records):
    """AUROC of both scores by foreign set, and the time of a step, against M."""
    ordered = sorted(groups(records), key=size_of)
    with_term, without = (
        {
            size_of(group): runs
            for group in ordered
            for m, runs in by_method(records, group).items()
            if lambda_of(m) == weight
        }
        for weight in (USUAL_LAMBDA, 0)
    )
    scored = by_score([each for runs in with_term.values() for each in runs.values()])
    sizes = list(with_term)
    panels = {}
    for heading, prefix in FOREIGN.items():
        panels[f"AUROC, {heading}"] = {
            score: [
                np.array(
                    [
                        each[f"{prefix}auroc"]
                        for each in scored
                        if each["n_heads"] == size and each["score"] == score
                    ]
                )
                for size in sizes
            ]
            for score in SCORES
        }
    panels["Time of a step (ms)"] = {
        "with the pair term": [values(with_term[n], "step_ms") for n in sizes],
        "without": [values(without.get(n, {}), "step_ms") for n in sizes],
    }
    return draw_panels(panels, sizes, [str(n) for n in sizes], "Members")


def values(runs, name):
    return np.array([run[name] for run in runs.values()])


def draw_panels(panels, x, labels, x_label):
    """A panel for each measure: means and intervals of {label: values at each x}."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.1 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels))
    colours = {"BMA": ORANGE, "PDS": BLUE}
    for ax, (title, curves) in zip(axes, panels.items()):
        for i, (label, at_each) in enumerate(curves.items()):
            means, halves = np.transpose([interval(each) for each in at_each])
            ax.errorbar(
                *(x, means, np.nan_to_num(halves)),
                color=colours.get(label, (*COLORS, "0.3")[i % 5]),
                marker="os^Dv"[i % 5],
                label=label,
                ms=4,
                lw=1.3,
            )
        ax.set_xticks(x, labels)
        ax.set_xlabel(x_label)
        ax.set_title(title, fontsize=10)
    axes[-1].legend(fontsize=8, frameon=False)
    return finished(figure, axes, grid="y")


def draw_scores(records):
    """ROC curves and histograms on held-out classes, from quantiles of one seed."""
    from matplotlib.figure import Figure

    from sklearn_sharpbalance.plotting import OODDisplay

    methods = by_method(records, main_group(records))
    chosen = [SHALLOW, f"SED-A2D, lambda {USUAL_LAMBDA:g}"]
    chosen = [method for method in chosen if method in methods] or list(methods)[:1]
    figure = Figure(figsize=(4.6 * (1 + len(chosen)), 4.8), layout="constrained")
    axes = figure.subplots(1, 1 + len(chosen), squeeze=False)[0]
    for ax, method in zip(axes[1:], chosen):
        runs = methods[method]
        record = runs[min(runs)]
        for score in SCORES:
            found = record[f"{score.lower()}_quantiles"]
            display = OODDisplay(found["clean"], found["classes"], score_name=score)
            display.name = f"{method}, {score}"
            display.plot(axes[0])
        display.plot(ax, kind="histogram")
        ax.set_xlabel(f"{score}, {method}")
    return figure
