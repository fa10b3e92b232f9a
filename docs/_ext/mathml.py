"""Formulas as MathML, made by docutils at build time: no script, no network."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)
# docutils knows the sized delimiters in pairs only (bigl, bigr): sizes are left out.
SIZED = re.compile(r"\\[bB]igg?(?![a-zA-Z])")


def convert(translator, node, *, block):
    """MathML of a formula; its source, and a warning, where that fails."""
    try:
        return tex2mathml(SIZED.sub("", node.astext()), as_block=block)
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node)
        return translator.encode(node.astext())


def visit_math(self, node):
    """Write a formula inside of a line."""
    self.body.append(convert(self, node, block=False))
    raise nodes.SkipNode


def visit_displaymath(self, node):
    """Write a formula on lines of its own, which may scroll on a narrow page."""
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    self.body.append(convert(self, node, block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app):
    """Register the renderer."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(visit_math, None),
        block_renderers=(visit_displaymath, None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
