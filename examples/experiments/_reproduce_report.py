"""The report of a reproduction: its tables in the page, its figure beside it."""

import re

import numpy as np
from _reproduce_figures import draw, draw_tradeoff
from _reproduce_methods import BASELINE
from _reproduce_records import (
    are_controls,
    are_heads,
    are_sizes,
    at_equal_cost,
    by_method,
    difference,
    groups,
    has_costs,
    is_contest,
    is_sweep,
    mean,
)
from _reproduce_report_rethinking import controls_figures, controls_markdown
from _reproduce_report_sed import heads_figures, heads_markdown
from _reproduce_tables import (
    count,
    gain,
    marked,
    noise_text,
    plain,
    row,
    rows_of,
    signed,
    table_of,
)

__all__ = [
    "beside_the_paper",
    "boost_over_sam",
    "markdown",
    "with_table",
    "write_report",
]

# Heading: (name in the records, factor, digits)
COLUMNS = {
    "re-estimated": ("reestimated_accuracy", 100, 2),
    "corrupted, re-estimated": ("reestimated_corrupted_accuracy", 100, 2),
    "NLL": ("nll", 1, 3),
    "NLL, tempered": ("nll_after_temperature", 1, 3),
    "corrupted NLL": ("corrupted_nll", 1, 3),
    "corrupted NLL, tempered": ("corrupted_nll_after_temperature", 1, 3),
    "ECE": ("ece", 1, 3),
    "corrupted ECE": ("corrupted_ece", 1, 3),
    "DER": ("der", 1, 2),
    "corrupted DER": ("corrupted_der", 1, 2),
    "variance": ("variance", 1, 3),
    "KL": ("kl", 1, 2),
    "EIR": ("eir", 1, 2),
    "sharpness": ("sharpness", 1, 3),
    "rank correlation": ("rank_correlation", 1, 2),
}
OF_SIZES = (
    "NLL",
    "NLL, tempered",
    "corrupted NLL",
    "corrupted ECE",
    "DER",
    "EIR",
    "rank correlation",
)
# Mean logit / mean probability; the second has the prefix ``mean_proba_``.
OF_BOTH_MEANS = {
    "accuracy": ("accuracy", 100, 2),
    "corrupted": ("corrupted_accuracy", 100, 2),
    "NLL": ("nll", 1, 3),
    "NLL, tempered": ("nll_after_temperature", 1, 3),
    "corrupted NLL": ("corrupted_nll", 1, 3),
    "corrupted NLL, tempered": ("corrupted_nll_after_temperature", 1, 3),
}
# Over a deep ensemble of as many passes: (name in the records, factor, digits)
CLEAN_OVER, SAM, SHARPEST = f"clean over {BASELINE}", "SAM", "sharpest"
ACCURACY_AT_EQUAL_COST = {
    "clean at equal cost": ("accuracy", 100, 2),
    "at equal cost": ("corrupted_accuracy", 100, 2),
}
NLL_AT_EQUAL_COST = {
    "NLL, tempered, at equal cost": ("nll_after_temperature", 1, 3),
    "corrupted NLL at equal cost": ("corrupted_nll", 1, 3),
}
# Over the deep ensemble of a contest: (name in the records, factor, digits)
OF_CONTEST = {
    f"NLL, tempered, over {BASELINE}": ("nll_after_temperature", 1, 3),
    f"corrupted NLL, tempered, over {BASELINE}": (
        "corrupted_nll_after_temperature",
        1,
        3,
    ),
    f"DER over {BASELINE}": ("der", 1, 2),
}
BY_SEVERITY = [f"severity_{i}_corrupted_accuracy" for i in range(1, 6)]
# The paper's ensembles on CIFAR-10: clean, corrupted, and corrupted by severity
PAPER = {
    BASELINE: (95.58, 75.83, 88.90, 83.67, 77.56, 70.37, 58.63),
    SAM: (96.06, 76.32, 89.44, 84.24, 78.16, 71.04, 58.77),
    "SharpBalance": (96.18, 77.32, 89.75, 84.80, 78.98, 72.25, 60.78),
}
AS_PUBLISHED = ("sharpest", "flattest")  # by the paper's text and its code
BOTH_ACCURACIES = ("accuracy", "corrupted_accuracy")


def write_report(path, result):
    """Write tables and figures beside a result, under its name."""
    records = result["records"]
    if not records:
        return
    table = markdown(records)
    path.with_suffix(".md").write_text(table)
    print(table)
    for name, figure in figures(records).items():
        figure.savefig(path.with_name(path.stem + name + ".png"), dpi=110)


def figures(records):
    """{end of the file's name: figure}; the first has the name of the run."""
    if are_heads(records):
        return heads_figures(records)
    if are_controls(records):
        return controls_figures(records)
    if is_sweep(records):
        return {"": draw(records), "_tradeoff": draw_tradeoff(records)}
    return {"": draw(records)}


def with_table(page, name, table):
    """The page with the table in its place, if it has one for it."""
    place = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", page)


def markdown(records):
    """Tables of a run: accuracy and differences, probabilities, severities."""
    if are_heads(records):
        return heads_markdown(records)
    if are_controls(records):
        return controls_markdown(records)
    if are_sizes(records):
        return sizes_markdown(records)
    parts = []
    for group in groups(records):
        methods = by_method(records, group)
        title = f"**{group}**, {count(methods)}{noise_text(records)}"
        accuracy = accuracy_columns(records, methods)
        others = measure_columns(records, methods)
        if is_contest(records):
            accuracy |= relative_seconds(methods)
            others |= contest_columns(records, methods)
        parts += [title, table_of(methods, accuracy), table_of(methods, others)]
        parts += both_means(methods)
        parts += by_severity(records, methods)
    return "\n\n".join(parts) + "\n"


def sizes_markdown(records):
    """One table for ensembles of all sizes, and one by severity."""
    tables, severities = [], []
    for group in groups(records):
        methods = by_method(records, group)
        columns = accuracy_columns(records, methods, others=[BASELINE])
        measures = measure_columns(records, methods)
        kept = (*OF_SIZES, *NLL_AT_EQUAL_COST)
        columns |= {name: cells for name, cells in measures.items() if name in kept}
        members = {"members": dict.fromkeys(methods, group.split()[0])}
        tables.append((methods, members | columns))
        found = severity_columns(records, methods)
        if len(methods) > 1:
            others = {m: runs for m, runs in methods.items() if m != BASELINE}
            severities += rows_of(others, members | found, with_head=not severities)
    # A size with deep ensembles alone has no differences: their cells stay blank.
    headings = max((list(columns) for _, columns in tables), key=len)
    lines = []
    for methods, columns in tables:
        columns = {heading: columns.get(heading, {}) for heading in headings}
        lines += rows_of(methods, columns, with_head=not lines)
    title = f"{count(methods)}{noise_text(records)}"
    parts = [title, "\n".join(lines), *folded(severities)]
    return "\n\n".join(parts) + "\n"


def accuracy_columns(records, methods, others=(BASELINE, SAM, SHARPEST)):
    """{heading: {method: cell}} of accuracies and what they are ahead by."""
    columns = {
        "passes": {m: f"{mean(runs, 'passes'):.0f}" for m, runs in methods.items()},
        "accuracy": {m: gain(runs, "accuracy") for m, runs in methods.items()},
        "corrupted": {
            m: gain(runs, "corrupted_accuracy") for m, runs in methods.items()
        },
    }
    wanted = [(CLEAN_OVER, BASELINE, "accuracy")]
    wanted += [(f"over {other}", other, "corrupted_accuracy") for other in others]
    for heading, other, metric in wanted:
        found = against(records, methods, other, metric)
        if found:
            columns[heading] = marked(found)
    return columns | equal_cost_columns(records, methods, ACCURACY_AT_EQUAL_COST)


def measure_columns(records, methods):
    """{heading: {method: cell}} of probabilities, diversity and sharpness."""
    columns = {}
    for heading, (name, factor, digits) in COLUMNS.items():
        if any(name in record for record in records):  # older records lack some
            columns[heading] = {
                method: plain(factor * mean(runs, name), digits)
                for method, runs in methods.items()
            }
    return columns | equal_cost_columns(records, methods, NLL_AT_EQUAL_COST)


def contest_columns(records, methods):
    """{heading: {method: cell}} of likelihood and diversity over the deep ensemble."""
    columns = {}
    for heading, (name, factor, digits) in OF_CONTEST.items():
        found = against(records, methods, BASELINE, name)
        columns[heading] = marked(found, factor, digits)
    return columns


def relative_seconds(methods):
    """{heading: {method: cell}} of seconds, as multiples of the deep ensemble's.

    They are the seconds of all epochs, without selections. ``fit_seconds`` would not
    have those of a shared warm-up, or of an earlier command. Ensembles that were
    trained beside another command have no such seconds, and are left out.
    """
    seconds = {
        method: {
            seed: run["epoch_seconds"]
            for seed, run in runs.items()
            if "epoch_seconds" in run
        }
        for method, runs in methods.items()
    }
    baseline = seconds[BASELINE]
    cells = {}
    for method, own in seconds.items():
        ratios = [
            own[seed] / baseline[seed] for seed in sorted(own.keys() & baseline.keys())
        ]
        cells[method] = plain(float(np.mean(ratios)), 2) if ratios else ""
    return {f"seconds, {BASELINE} = 1": cells}


def equal_cost_columns(records, methods, wanted):
    """What methods gain over deep ensembles that cost as much."""
    columns = {}
    for heading, (name, factor, digits) in wanted.items():
        found = {
            method: at_equal_cost(records, runs, name)
            for method, runs in methods.items()
            if method != BASELINE and all(name in run for run in runs.values())
        }
        if has_costs(records) and any(name in record for record in records):
            columns[heading] = marked(found, factor, digits)
    return columns


def against(records, methods, other, metric):
    """{method: Difference} to another method; empty if the run does not have it."""
    if other == SAM and SAM not in methods:
        other = "all"  # its name among the rules
    return {
        method: difference(records, runs, methods[other], metric)
        for method, runs in methods.items()
        if other in methods and method != other
    }


def both_means(methods):
    """The table of mean logits beside mean probabilities, if records have both."""
    methods = {
        method: runs
        for method, runs in methods.items()
        if any("mean_proba_nll" in run for run in runs.values())
    }
    if not methods:
        return []
    columns = {
        heading: {
            method: paired_cell(runs, name, factor, digits)
            for method, runs in methods.items()
        }
        for heading, (name, factor, digits) in OF_BOTH_MEANS.items()
    }
    return ["Mean logit / mean probability:", table_of(methods, columns)]


def paired_cell(runs, name, factor, digits):
    """The ensemble by mean logit / by mean probability; blank if not recorded."""
    cells = [plain(factor * mean(runs, each), digits) for each in both(name)]
    return " / ".join(cells) if all(cells) else ""


def both(name):
    return name, f"mean_proba_{name}"


def by_severity(records, methods):
    """The folded table of corrupted accuracy over the deep ensemble by severity."""
    columns = severity_columns(records, methods)
    if not columns:
        return []
    others = {m: runs for m, runs in methods.items() if m in columns["severity 1"]}
    return folded(rows_of(others, columns))


def severity_columns(records, methods):
    """{heading: {method: cell}} of corrupted accuracy over the deep ensemble."""
    columns = {}
    for severity, metric in enumerate(BY_SEVERITY, start=1):
        found = against(records, methods, BASELINE, metric)
        if any(not np.isnan(each.mean) for each in found.values()):
            columns[f"severity {severity}"] = {
                method: signed(each) for method, each in found.items()
            }
    return columns


def folded(lines):
    if not lines:
        return []
    summary = f"Corrupted accuracy over {BASELINE} by severity"
    text = "\n".join(lines)
    return [f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"]


def beside_the_paper(records):
    """The table of a run by the paper's recipe beside the paper's own numbers."""
    methods = by_method(records, "same cost") | by_method(records, "same epochs")
    lines = ["| | paper | here | paper, by severity | here, by severity |"]
    lines += ["|---" * 5 + "|"]
    for method, runs in methods.items():
        published = PAPER.get("SharpBalance" if method in AS_PUBLISHED else method)
        cells = []
        for values, here in (
            (published and published[:2], BOTH_ACCURACIES),
            (published and published[2:], BY_SEVERITY),
        ):
            joint = " / " if here is BOTH_ACCURACIES else " "
            cells.append(joint.join(f"{value:.2f}" for value in values or ()))
            found = [100 * mean(runs, name) for name in here]
            cells.append(joint.join(f"{value:.2f}" for value in found))
        lines.append(row([method, *cells]))
    for method, other in (
        (SAM, BASELINE),
        ("flattest", SAM),
        ("flattest", BASELINE),
        ("flattest, late", BASELINE),
    ):
        if method in methods and other in methods:
            lines.append(row(difference_row(records, methods, method, other)))
    return "\n".join(lines) + "\n"


def difference_row(records, methods, method, other):
    """Cells of a difference beside the paper's, with intervals if there are any."""
    cells = [f"{method} over {other}"]
    ours = "SharpBalance" if method in AS_PUBLISHED else method
    paper = [""] * 7
    if ours in PAPER and other in PAPER:
        paper = [f"{a - b:+.2f}" for a, b in zip(PAPER[ours], PAPER[other])]
    here = [
        signed(difference(records, methods[method], methods[other], name))
        for name in (*BOTH_ACCURACIES, *BY_SEVERITY)
    ]
    for values in (paper, here):
        both = " / ".join(filter(None, values[:2]))
        cells += [both, " ".join(values[2:]).strip()]
    return [cells[i] for i in (0, 1, 3, 2, 4)]


def boost_over_sam(headline, ablation):
    """The table of ``flattest`` minus SAM by severity, beside the paper's."""
    lines = ["| `flattest` minus SAM, by severity | 1 | 2 | 3 | 4 | 5 |"]
    lines += ["|---" * 6 + "|"]
    gains = zip(PAPER["SharpBalance"][2:], PAPER[SAM][2:])
    paper = [f"{ours - sam:+.2f}" for ours, sam in gains]
    lines.append(row(["the paper (SharpBalance minus SAM)", *paper]))
    for records, text, sam in (
        (ablation, "width 16, 60 epochs", "all"),
        (headline, "width 64, 200 epochs, the paper's recipe", SAM),
    ):
        methods = by_method(records, "same epochs")
        pair = methods["flattest"], methods[sam]
        cells = [signed(difference(records, *pair, name)) for name in BY_SEVERITY]
        number = len(pair[0].keys() & pair[1].keys())
        seeds = "one seed, no interval" if number == 1 else f"{number} seeds"
        lines.append(row([f"{text} ({seeds})", *cells]))
    return "\n".join(lines) + "\n"
