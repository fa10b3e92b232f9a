"""Cells and rows of the tables of a reproduction."""

import numpy as np
from _reproduce_records import (
    FEW_SEEDS,
    Difference,
    holm,
    mean,
    noise_of,
    seeds_of_run,
)

__all__ = [
    "count",
    "gain",
    "marked",
    "noise_text",
    "plain",
    "row",
    "rows_of",
    "signed",
    "table_of",
]


def table_of(methods, columns):
    return "\n".join(rows_of(methods, columns))


def rows_of(methods, columns, with_head=True):
    """Lines of a table; the name of a row comes first, after ``members``."""
    headings = list(columns)
    at = 1 if "members" in headings[:1] else 0
    head = [*headings[:at], "method", *headings[at:]]
    lines = [row(head), "|---" * len(head) + "|"] if with_head else []
    for method in methods:
        cells = [columns[heading].get(method, "") for heading in headings]
        lines.append(row([*cells[:at], method, *cells[at:]]))
    return lines


def noise_text(records):
    """What the intervals of a run with few seeds come from."""
    if not 1 < len(seeds_of_run(records)) < FEW_SEEDS:
        return ""
    clean, corrupted = (
        noise_of(records, name) for name in ("accuracy", "corrupted_accuracy")
    )
    if corrupted.dof == 0:
        return ""
    return (
        f"; pooled standard deviation {100 * clean.sd:.2f} points clean, "
        f"{100 * corrupted.sd:.2f} corrupted, {corrupted.dof} degrees of freedom"
    )


def count(methods):
    """How many ensembles stand behind a row."""
    numbers = sorted({len(runs) for runs in methods.values()})
    text = " to ".join(dict.fromkeys((str(numbers[0]), str(numbers[-1]))))
    return f"{text} ensemble{'s' if text != '1' else ''} a row"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def plain(value, digits):
    return "" if np.isnan(value) else f"{value:.{digits}f}"


def gain(runs, name):
    """Members -> ensemble in percent; the spread is that of the ensemble."""
    values = 100 * np.array([record[name] for record in runs.values()])
    text = f"{100 * mean(runs, f'member_{name}'):.2f} → {100 * mean(runs, name):.2f}"
    return text + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def signed(found, factor=100, digits=2):
    """A Difference, in points of a hundred, with its interval if there is one."""
    found = Difference(*found)
    if np.isnan(found.mean):
        return ""
    text = f"{factor * found.mean:+.{digits}f}"
    half = "" if np.isnan(found.half) else f" ± {factor * found.half:.{digits}f}"
    return text + half


def marked(found, factor=100, digits=2):
    """Cells of {method: Difference}; a star where Holm's p-value is below 0.05."""
    adjusted = holm([each.p_value for each in found.values()])
    return {
        method: signed(each, factor, digits) + (" *" if p_value < 0.05 else "")
        for (method, each), p_value in zip(found.items(), adjusted)
    }
