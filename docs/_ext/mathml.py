"""Formulas as MathML, made by docutils at build time: no script, no network."""

from docutils import nodes
from docutils.utils.math import latex2mathml, pick_math_environment


def to_mathml(latex, *, block):
    """MathML of a formula.

    Parameters
    ----------
    latex : str
    block : bool
        Whether it stands on lines of its own.
    """
    if block:
        environment = pick_math_environment(latex, numbered=False)
        latex = f"\\begin{{{environment}}}{latex}\\end{{{environment}}}"
    tree = latex2mathml.tex2mathml(latex, as_block=block)
    return tree if isinstance(tree, str) else tree.toxml()


def visit_math(self, node):
    """Write a formula inside of a line."""
    self.body.append(_convert(self, node, block=False))
    raise nodes.SkipNode


def visit_displaymath(self, node):
    """Write a formula on lines of its own, which may scroll on a narrow page."""
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    self.body.append(_convert(self, node, block=True) + "</div>\n")
    raise nodes.SkipNode


def _convert(self, node, *, block):
    from docutils.utils.math import MathError
    from sphinx.util import logging

    try:
        return to_mathml(node.astext(), block=block)
    except MathError as error:
        logger = logging.getLogger(__name__)
        logger.warning("formula %r: %s", node.astext(), error, location=node)
        return self.encode(node.astext())


def setup(app):
    """Register the renderer."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(visit_math, None),
        block_renderers=(visit_displaymath, None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
