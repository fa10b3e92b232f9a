"""Numbers in the text come from the files that the benchmarks wrote.

``{{ "%.2f" % cpu.digits_50_epochs.deep_ratio }}`` reads ``results/cpu.json`` (no ``|``
inside: it would end a cell of a table), ``{{ confirm.SAM.NLL }}`` a cell of
``results/reproduce_confirm.md``. The page ``results`` is ``RESULTS.md`` of the
experiments.
"""

import re

from measured import EXPERIMENTS

FOLDER = EXPERIMENTS.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
OUTSIDE = ("http:", "https:", "mailto:", "#")


def at_home(text):
    """Markdown of the experiments with its relative links as seen from ``docs/``.

    Figures are shown and files offered for download; folders and what is not there
    are named without a link.
    """

    def place(match):
        image, label, target = match.groups()
        path, _, _ = target.partition("#")
        if target.startswith(OUTSIDE):
            return match[0]
        if not (FOLDER / path).is_file():
            return label
        scheme = "" if image else "path:"
        return f"{image}[{label}]({scheme}/../examples/experiments/{path})"

    return LINK.sub(place, text)


def fill_page(app, docname, source):
    """Let the page of results be what the experiments say."""
    path = FOLDER / "RESULTS.md"
    if docname == "results" and path.exists():
        app.env.note_dependency(str(path))
        source[0] = at_home(path.read_text())


def setup(app):
    """Register the page."""
    app.connect("source-read", fill_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
