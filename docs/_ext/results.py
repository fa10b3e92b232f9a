"""Numbers in the text come from the files that the benchmarks wrote.

``{{ "%.2f" % cpu.digits_50_epochs.deep_ratio }}`` reads ``results/cpu.json`` (no ``|``
inside: it would end a cell of a table), ``{{ confirm.SAM.NLL }}`` a cell of
``results/reproduce_confirm.md``. The directive ``results`` shows
``results/NAME.md`` and the figure beside it, or says which command writes them. The
page ``results`` is ``RESULTS.md`` of the benchmarks.
"""

import re

from measured import RESULTS
from sphinx.util.docutils import SphinxDirective

BENCHMARKS = RESULTS.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
OUTSIDE = ("http:", "https:", "mailto:", "#")


def at_home(text):
    """Markdown of the benchmarks with its relative links as seen from ``docs/``.

    Figures are shown and files offered for download; folders and what is not there
    are named without a link.
    """

    def place(match):
        image, label, target = match.groups()
        path, _, _ = target.partition("#")
        if target.startswith(OUTSIDE):
            return match[0]
        if not (BENCHMARKS / path).is_file():
            return label
        scheme = "" if image else "path:"
        return f"{image}[{label}]({scheme}/../examples/benchmarks/{path})"

    return LINK.sub(place, text)


def fill_page(app, docname, source):
    """Let the page of results be what the benchmarks say."""
    path = BENCHMARKS / "RESULTS.md"
    if docname == "results" and path.exists():
        app.env.note_dependency(str(path))
        source[0] = at_home(path.read_text())


class ResultsDirective(SphinxDirective):
    """Show what a benchmark wrote, or the room that is kept for it."""

    required_arguments = 1
    has_content = True

    def run(self):
        """Parse table and figure, or the text of the directive as a note."""
        name = self.arguments[0]
        path = RESULTS / f"{name}.md"
        self.env.note_dependency(str(path))
        if path.exists():
            lines = [at_home(path.read_text())]
            if (RESULTS / f"{name}.png").exists():
                lines += ["", f"![{name}](/../examples/benchmarks/results/{name}.png)"]
        else:
            lines = [":::{admonition} Not measured yet", *self.content, ":::"]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app):
    """Register the directive and the page."""
    app.add_directive("results", ResultsDirective)
    app.connect("source-read", fill_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
