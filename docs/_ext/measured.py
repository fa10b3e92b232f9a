"""What benchmarks and experiments wrote, as values for the text: no Sphinx needed."""

import json
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
BENCHMARKS, EXPERIMENTS = (
    EXAMPLES / name / "results" for name in ("benchmarks", "experiments")
)
TABLES = (  # name in the text, file, title of the table
    ("confirm", "reproduce_confirm", "same cost"),
    ("rules", "reproduce_digits", "same epochs"),
    ("ablation", "reproduce_ablation", "same epochs"),
    ("ablation_same_cost", "reproduce_ablation", "same cost"),
    ("defaults", "reproduce_defaults", "same epochs"),
    ("contest", "reproduce_contest", "same cost"),
    ("contest_wide", "reproduce_contest_wide", "same cost"),
    ("without_settings", "reproduce_defaults_step", "same epochs"),
    ("more_epochs", "reproduce_defaults_step", "same cost"),
    ("headline", "reproduce_headline", "same epochs"),
    ("headline_same_cost", "reproduce_headline", "same cost"),
    ("heads", "reproduce_sed", "5 heads"),
    ("no_control_ensembles", "reproduce_rethinking", "no control, ensembles"),
    ("both_ensembles", "reproduce_rethinking", "both, ensembles"),
    ("flat_nets", "reproduce_rethinking", "rank correlations, single nets"),
    ("flat_ensembles", "reproduce_rethinking", "rank correlations, ensembles"),
)


def read_results():
    """Every JSON file by its name, and the tables that the text speaks of."""
    files = [*BENCHMARKS.glob("*.json"), *EXPERIMENTS.glob("*.json")]
    found = {path.stem: json.loads(path.read_text()) for path in files}
    for name, table, group in TABLES:
        text = (EXPERIMENTS / f"{table}.md").read_text()
        found[name] = read_tables(text)[group]
    return found


def read_tables(text):
    """Cells of Markdown tables by group (the bold title), method and column.

    A group may have several tables; of columns with one name the first is read. The
    star of a difference that Holm's test holds up is left out.
    """
    tables, group, columns = {}, None, None
    for line in text.splitlines():
        if line.startswith("**"):
            group = line.split("**")[1]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = _cells(line)
        elif not set(line) <= set("|-: "):
            cells = [cell.removesuffix(" *") for cell in _cells(line)]
            row = tables.setdefault(group, {}).setdefault(cells[0], {})
            for column, cell in zip(columns, cells):
                row.setdefault(column, cell)
    return tables


def _cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]
