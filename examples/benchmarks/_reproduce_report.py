"""Tables and figures from the records of a reproduction."""

import re

import numpy as np
from _reproduce_methods import BASELINE
from scipy import stats

__all__ = ["differences", "markdown", "with_table", "write_report"]

# Heading: (name in the records, factor, digits)
COLUMNS = {
    "NLL": ("nll", 1, 3),
    "ECE": ("ece", 1, 3),
    "DER": ("der", 1, 2),
    "variance": ("variance", 1, 3),
    "KL": ("kl", 1, 2),
    "EIR": ("eir", 1, 2),
    "sharpness": ("sharpness", 1, 3),
    "corrupted NLL": ("corrupted_nll", 1, 3),
    "corrupted ECE": ("corrupted_ece", 1, 3),
    "rank correlation": ("rank_correlation", 1, 2),
}
OF_SIZES = ("NLL", "DER", "EIR", "corrupted NLL", "corrupted ECE", "rank correlation")
AT_EQUAL_COST = "at equal cost"  # points over a deep ensemble of as many passes
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def write_report(path, result):
    """``path`` names the result; the table and the figure get its name too."""
    records = result["records"]
    if not records:
        return
    table = markdown(records)
    path.with_suffix(".md").write_text(table)
    print(table)
    page = path.parent.parent / "RESULTS.md"
    if page.exists():
        page.write_text(with_table(page.read_text(), path.stem, table))
    figure = draw(records)
    figure.savefig(path.with_suffix(".png"), dpi=110)


def with_table(page, name, table):
    """The page with the table in its place, if it has one for it."""
    place = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", page)


def groups(records):
    return list(dict.fromkeys(record["group"] for record in records))


def by_method(records, group):
    """{method: {seed: record}} in the order of training."""
    table = {}
    for record in records:
        if record["group"] == group:
            table.setdefault(record["method"], {})[record["seed"]] = record
    return table


def differences(methods, method, metric, other=BASELINE, confidence=0.95):
    """Mean paired difference to another method, and half of its interval.

    The interval is Student's over the seeds that both have; nan for a single one.
    """
    both = sorted(methods[method].keys() & methods.get(other, {}).keys())
    values = np.array(
        [methods[method][s][metric] - methods[other][s][metric] for s in both]
    )
    return interval(values, confidence)


def interval(values, confidence=0.95):
    """Mean and half of its interval (Student); nan where there are too few."""
    if len(values) == 0:
        return np.nan, np.nan
    if len(values) == 1:
        return float(values[0]), np.nan
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return values.mean(), stats.t.ppf((1 + confidence) / 2, len(values) - 1) * spread


def at_its_cost(records, record, metric):
    """What deep ensembles of a record's seed reach for as many passes.

    Between one that costs less and one that costs more it is a straight line; nan if
    there are no two such.
    """
    found = {
        other["passes"]: other[metric]
        for other in records
        if other["method"] == BASELINE and other["seed"] == record["seed"]
    }
    cheapest, dearest = min(found, default=0), max(found, default=0)
    # The passes of the selections vary by some of a thousand from seed to seed.
    if cheapest == dearest or not 0.99 * cheapest <= record["passes"] <= 1.01 * dearest:
        return np.nan
    passes = sorted(found)
    return float(np.interp(record["passes"], passes, [found[p] for p in passes]))


def over_its_cost(records, runs, metric="corrupted_accuracy"):
    """Points over a deep ensemble of the same cost, with the 95 % interval."""
    gains = [run[metric] - at_its_cost(records, run, metric) for run in runs.values()]
    return points(*interval(np.array(gains)[~np.isnan(gains)]))


def has_costs(records):
    """Whether deep ensembles of several costs were trained."""
    costs = {record["passes"] for record in records if record["method"] == BASELINE}
    return len(costs) > 1


def markdown(records):
    """One table a group: members -> ensemble, with the spread over seeds."""
    if are_sizes(records):
        return sizes_markdown(records)
    columns = {  # older records lack some
        heading: column
        for heading, column in COLUMNS.items()
        if all(column[0] in record for record in records)
    }
    parts = []
    for group in groups(records):
        methods = by_method(records, group)
        others = [other for other in (BASELINE, "sharpbalance") if other in methods]
        lines = [f"**{group}**, {count(methods)}", ""]
        lines += heading(["method"], records, others, columns)
        for method in methods:
            cells = cells_of(records, methods, method, others, columns)
            lines.append(row([method, *cells]))
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def sizes_markdown(records):
    """One table for ensembles of all sizes."""
    columns = {name: COLUMNS[name] for name in OF_SIZES}
    lines = heading(["members", "method"], records, [BASELINE], columns)
    for group in groups(records):
        methods = by_method(records, group)
        for method in methods:
            cells = cells_of(records, methods, method, [BASELINE], columns)
            lines.append(row([group.split()[0], method, *cells]))
    return "\n".join([count(methods), "", *lines]) + "\n"


def heading(names, records, others, columns):
    """The first lines of a table: names of the rows, then what the cells are."""
    head = [*names, "passes", "accuracy", "corrupted"]
    head += [f"over {other}" for other in others]
    head += [AT_EQUAL_COST] * has_costs(records)
    head += columns
    return [row(head), "|---" * len(head) + "|"]


def cells_of(records, methods, method, others, columns):
    """What a row says about a method, after its name."""
    runs = methods[method]
    cells = [f"{mean(runs, 'passes'):.0f}"]
    cells += [gain(runs, "accuracy"), gain(runs, "corrupted_accuracy")]
    cells += [against(methods, method, other) for other in others]
    if has_costs(records):
        cells.append("" if method == BASELINE else over_its_cost(records, runs))
    for name, factor, digits in columns.values():
        cells.append(f"{factor * mean(runs, name):.{digits}f}")
    return cells


def are_sizes(records):
    return all(record["group"].endswith(" members") for record in records)


def count(methods):
    """How many ensembles stand behind a row."""
    numbers = sorted({len(runs) for runs in methods.values()})
    text = " to ".join(dict.fromkeys((str(numbers[0]), str(numbers[-1]))))
    return f"{text} ensemble{'s' if text != '1' else ''} a row"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def mean(runs, name):
    return float(np.mean([record[name] for record in runs.values()]))


def gain(runs, name):
    """Members -> ensemble in percent; the spread is that of the ensemble."""
    values = 100 * np.array([record[name] for record in runs.values()])
    text = f"{100 * mean(runs, f'member_{name}'):.2f} → {values.mean():.2f}"
    return text + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def against(methods, method, other):
    """Corrupted accuracy over that of another method, with its 95 % interval."""
    if method == other:
        return ""
    return points(*differences(methods, method, "corrupted_accuracy", other))


def points(difference, half):
    """A difference in points of a hundred, with its interval if there is one."""
    if np.isnan(difference):
        return ""
    text = f"{100 * difference:+.2f}"
    return text if np.isnan(half) else text + f" ± {100 * half:.2f}"


def draw(records):
    """Sizes, or differences to the deep ensemble, or the trade-off."""
    if are_sizes(records):
        return draw_sizes(records)
    tables = {group: by_method(records, group) for group in groups(records)}
    compared = {g: t for g, t in tables.items() if BASELINE in t and len(t) > 1}
    return draw_differences(compared) if compared else cloud(records)


def draw_differences(tables):
    """A panel for each group: clean and corrupted accuracy against the baseline."""
    from matplotlib.figure import Figure

    rows = max(len(methods) for methods in tables.values())
    figure = Figure(
        figsize=(5.6 * len(tables), 1.4 + 0.32 * rows), layout="constrained"
    )
    axes = figure.subplots(1, len(tables), squeeze=False)[0]
    for ax, (group, methods) in zip(axes, tables.items()):
        names = [name for name in methods if name != BASELINE]
        names.sort(key=lambda n: -differences(methods, n, "corrupted_accuracy")[0])
        ax.axvline(0, color="0.5", lw=1)
        for metric, label, color, shift in (
            ("accuracy", "clean", BLUE, -0.15),
            ("corrupted_accuracy", "corrupted", ORANGE, 0.15),
        ):
            pairs = np.array([differences(methods, n, metric) for n in names]) * 100
            at = np.arange(len(names)) + shift
            ax.errorbar(
                *(pairs[:, 0], at),
                xerr=np.nan_to_num(pairs[:, 1]),
                fmt="o",
                ms=4,
                color=color,
                elinewidth=1.2,
                label=label,
            )
        ax.set_yticks(np.arange(len(names)), names)
        ax.invert_yaxis()
        ax.set_title(group)
        ax.set_xlabel("Points of accuracy over a deep ensemble")
        ax.grid(axis="x", color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def draw_sizes(records):
    """Four measures against the number of members, with their 95 % intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    axes = figure.subplots(1, 4)
    sizes = {
        int(group.split()[0]): by_method(records, group) for group in groups(records)
    }
    for ax, (label, name, factor) in zip(
        axes,
        (
            ("Corrupted accuracy (%)", "corrupted_accuracy", 100),
            ("Improvement over members (EIR)", "eir", 1),
            ("NLL, corrupted", "corrupted_nll", 1),
            ("ECE, corrupted", "corrupted_ece", 1),
        ),
    ):
        for i, method in enumerate(next(iter(sizes.values()))):
            values = {
                size: factor * np.array([run[name] for run in methods[method].values()])
                for size, methods in sizes.items()
                if method in methods
            }
            means, halves = np.transpose([interval(v) for v in values.values()])
            at = np.array(list(values)) + 0.08 * (i - 1)  # beside each other
            style = {"color": (BLUE, ORANGE, GREEN)[i], "marker": "os^"[i]}
            ax.errorbar(at, means, halves, label=method, ms=5, lw=1.4, **style)
        ax.set_xticks(list(sizes))
        ax.set_xlabel("Members")
        ax.set_title(label, fontsize=11)
        ax.grid(axis="y", color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
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
