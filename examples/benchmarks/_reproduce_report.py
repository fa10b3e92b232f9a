"""The report of a reproduction: its table in the page, its figure beside it."""

import re

import numpy as np
from _reproduce_figures import draw
from _reproduce_methods import BASELINE
from _reproduce_records import (
    are_sizes,
    by_method,
    differences,
    groups,
    has_costs,
    mean,
    over_its_cost,
)

__all__ = ["markdown", "with_table", "write_report"]

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
    "corrupted NLL, tempered": ("corrupted_nll_after_temperature", 1, 3),
    "corrupted ECE": ("corrupted_ece", 1, 3),
    "rank correlation": ("rank_correlation", 1, 2),
}
OF_SIZES = ("NLL", "DER", "EIR", "corrupted NLL", "corrupted ECE", "rank correlation")
# Over a deep ensemble of as many passes: (name in the records, factor, digits)
AT_EQUAL_COST = {
    "at equal cost": ("corrupted_accuracy", 100, 2),
    "corrupted NLL at equal cost": ("corrupted_nll", 1, 3),
}


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


def markdown(records):
    """One table a group: members -> ensemble, with the spread over seeds."""
    if are_sizes(records):
        return sizes_markdown(records)
    columns = {  # older records lack some
        heading: column
        for heading, column in COLUMNS.items()
        if any(column[0] in record for record in records)
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
    head += AT_EQUAL_COST if has_costs(records) else ()
    head += columns
    return [row(head), "|---" * len(head) + "|"]


def cells_of(records, methods, method, others, columns):
    """What a row says about a method, after its name."""
    runs = methods[method]
    cells = [f"{mean(runs, 'passes'):.0f}"]
    cells += [gain(runs, "accuracy"), gain(runs, "corrupted_accuracy")]
    cells += [against(methods, method, other) for other in others]
    if has_costs(records):
        cells += [at_equal_cost(records, runs, *c) for c in AT_EQUAL_COST.values()]
    for name, factor, digits in columns.values():
        value = factor * mean(runs, name)
        cells.append("" if np.isnan(value) else f"{value:.{digits}f}")
    return cells


def at_equal_cost(records, runs, name, factor, digits):
    """What a method gains over deep ensembles that cost as much."""
    first = next(iter(runs.values()))
    if first["method"] == BASELINE or any(name not in run for run in runs.values()):
        return ""
    return signed(*over_its_cost(records, runs, name), factor, digits)


def count(methods):
    """How many ensembles stand behind a row."""
    numbers = sorted({len(runs) for runs in methods.values()})
    text = " to ".join(dict.fromkeys((str(numbers[0]), str(numbers[-1]))))
    return f"{text} ensemble{'s' if text != '1' else ''} a row"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def gain(runs, name):
    """Members -> ensemble in percent; the spread is that of the ensemble."""
    values = 100 * np.array([record[name] for record in runs.values()])
    text = f"{100 * mean(runs, f'member_{name}'):.2f} → {values.mean():.2f}"
    return text + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def against(methods, method, other):
    """Corrupted accuracy over that of another method, with its 95 % interval."""
    if method == other:
        return ""
    return signed(*differences(methods, method, "corrupted_accuracy", other))


def signed(difference, half, factor=100, digits=2):
    """A difference, in points of a hundred, with its interval if there is one."""
    if np.isnan(difference):
        return ""
    text = f"{factor * difference:+.{digits}f}"
    return text if np.isnan(half) else text + f" ± {factor * half:.{digits}f}"
