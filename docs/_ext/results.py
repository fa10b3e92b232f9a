"""Results in the text come from the files that benchmarks and experiments wrote.

``{{ "%.2f" % cpu.digits_50_epochs.deep_ratio }}`` reads ``cpu.json`` (no ``|`` inside:
it would end a cell of a table). The page ``results`` is ``RESULTS.md`` of the
experiments, and the files with tables become pages in ``auto_results``.
"""

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
EXAMPLES = DOCS.parent / "examples"
BENCHMARKS = EXAMPLES / "benchmarks" / "results"
EXPERIMENTS = EXAMPLES / "experiments" / "results"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
OUTSIDE = ("http:", "https:", "mailto:", "#")
PAGE = """\
---
orphan: true
---

# {title}

`{path}`

{tables}"""


def read_results():
    """Return the values of the benchmarks by the name of their file."""
    found = {p.stem: json.loads(p.read_text()) for p in BENCHMARKS.glob("*.json")}
    images = (BENCHMARKS / "images.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in images]
    final = [run for run in runs if run["plan"] == "final"]
    found["images"] = {run["row"]: run for run in final if "cifar100" in run["data"]}
    few = [run for run in runs if run["plan"] == "final_few"]
    found["few_images"] = {run["row"]: run for run in few}
    return found


def write_tables(app):
    """Write a page for each file with tables of results."""
    pages = DOCS / "auto_results"
    pages.mkdir(exist_ok=True)
    for path in [*EXPERIMENTS.glob("*.md"), *BENCHMARKS.glob("*.md")]:
        title = path.stem.removeprefix("reproduce_").replace("_", " ")
        tables = re.sub("^# .*\n", "", path.read_text())
        place = path.relative_to(DOCS.parent)
        text = PAGE.format(title=f"Results: {title}", path=place, tables=tables)
        page = pages / path.name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def at_home(text, folder):
    """Markdown in ``folder`` with its relative links as seen from ``docs/``.

    Pages and tables are linked, figures shown and other files offered for download.
    Folders and what is not there are named without a link.
    """

    def place(match):
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if target.startswith(OUTSIDE):
            return match[0]
        file = (folder / path).resolve()
        if not file.is_file():
            return label
        if file.parent in (EXPERIMENTS, BENCHMARKS) and file.suffix == ".md":
            return f"[{label}](/auto_results/{file.name})"
        if file.is_relative_to(DOCS):
            anchor = anchor and f"#{anchor}"
            return f"{image}[{label}](/{file.relative_to(DOCS)}{anchor})"
        scheme = "" if image else "path:"
        return f"{image}[{label}]({scheme}/../{file.relative_to(DOCS.parent)})"

    return LINK.sub(place, text)


def fill_page(app, docname, source):
    """Let the page of results be what the experiments say; link to the tables."""
    path = EXPERIMENTS.parent / "RESULTS.md"
    if docname == "results":
        app.env.note_dependency(str(path))
        source[0] = at_home(path.read_text(), path.parent)
    elif "../examples/" in source[0]:
        source[0] = at_home(source[0], (DOCS / docname).parent)


def setup(app):
    """Register the pages."""
    app.connect("builder-inited", write_tables)
    app.connect("source-read", fill_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
