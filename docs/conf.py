"""The documentation site.

``sphinx-build -W --keep-going -b html docs docs/_build/html`` makes it. Nothing
is downloaded at build time, and the pages need no network: formulas become MathML,
which browsers draw by themselves.
"""

import os
import shutil
import sys
import warnings
from pathlib import Path

# Examples make many small tensor operations. On two cores shared with other processes,
# two threads took several times the processor time of one. Two examples run at a time
# instead (``parallel`` below). torch reads the variable when it is imported; the worker
# processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "_ext")]

# Notebooks live with the examples; Sphinx reads sources below its own folder only.
for notebook in (ROOT / "examples").glob("*.ipynb"):
    shutil.copy2(notebook, HERE / "notebooks")

from results import read_results

import sklearn_sharpbalance

# Project ---------------------------------------------------------------------------

project = "sklearn-sharpbalance"
author = "the sklearn-sharpbalance developers"
project_copyright = author
version = release = sklearn_sharpbalance.__version__

# Sources ---------------------------------------------------------------------------

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "myst_nb",
    "docstrings",
    "mathml",
    "results",
]
exclude_patterns = [
    "_build",
    "**.ipynb_checkpoints",
    "auto_examples/*.ipynb",  # sphinx-gallery writes one beside every example
    "auto_examples/*.py",
    "sg_execution_times.rst",
    "auto_examples/sg_execution_times.rst",
]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]  # functions in sphinx_gallery_conf

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "substitution"]
myst_substitutions = read_results()
myst_heading_anchors = 3
nb_execution_mode = "off"  # the outputs in the files are shown; tests run them

# API -------------------------------------------------------------------------------

autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "none"  # types stand in the docstrings, with shapes
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # the class template lists them
numpydoc_xref_param_type = False
default_role = None
smartquotes = False  # default="auto" stays as it is typed

# Gallery ---------------------------------------------------------------------------

os.environ.setdefault("MPLBACKEND", "Agg")
warnings.filterwarnings("ignore", message=".*non-interactive.*", category=UserWarning)

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "gallery.example_order",
    "nested_sections": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "capture_repr": ("_repr_html_",),  # tables, and not what a plotting call returns
    "default_thumb_file": str(HERE / "_static" / "members.png"),
    "min_reported_time": 1e9,
    "plot_gallery": True,
    "parallel": 2,
    "abort_on_example_error": True,
    "doc_module": ("sklearn_sharpbalance",),
    "matplotlib_animations": False,
}

# HTML ------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "sklearn-sharpbalance"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_favicon = "_static/members.png"
html_context = {"default_mode": "auto"}
html_math_renderer = "mathml"
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "header_dropdown_text": "More",
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
# Pages without pages below them have nothing to show at their side.
html_sidebars = {
    page: []
    for page in (
        *("index", "install", "which_method", "results", "performance"),
        *("reliability", "limits", "faithful", "glossary"),
    )
}
