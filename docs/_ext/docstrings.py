"""Docstrings are written for the terminal; here they are made safe for reST.

Types go over a line's end with a backslash, shapes are written ``(N, *shape)`` and
``(n_features_in_,)``. reST would take the star for emphasis and the underscore for a
link. Inherited docstrings of scikit-learn refer to its glossary and user guide, which
are not part of this site.
"""

import re

CONTINUED = re.compile(r"(?<!\\)\\$")  # two would be a new line of a formula
STAR = re.compile(r"(?<=[(, ])\*(?=\w+[,)])")
TRAILING_UNDERSCORE = re.compile(r"(?<=[(, ])(\w+_)(?=[,)])")
FOREIGN = re.compile(r":(?:term|ref):`([^`<]+?)(?: <[^`>]*>)?`")
SPECIAL = re.compile(r"[`\\]|>>>")


def make_safe(app, what, name, obj, options, lines):
    """Join continued lines, escape shapes and drop foreign references, in place."""
    joined = []
    for line in (FOREIGN.sub(r"``\1``", line) for line in lines):
        if joined and CONTINUED.search(joined[-1]):
            joined[-1] = joined[-1][:-1].rstrip() + " " + line.strip()
        else:
            joined.append(line)
    lines[:] = [line if SPECIAL.search(line) else _escape(line) for line in joined]


def _escape(line):
    return TRAILING_UNDERSCORE.sub(r"``\1``", STAR.sub(r"\\*", line))


def setup(app):
    """Work before numpydoc does, which listens with priority 500."""
    app.connect("autodoc-process-docstring", make_safe, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
