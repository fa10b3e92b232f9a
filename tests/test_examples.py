"""Examples and notebooks run; notebooks are committed with their outputs."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS

nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SCRIPTS = sorted(EXAMPLES.glob("plot_*.py"))
# Several seconds even if shortened; the documentation build also runs them.
LONG = (
    "plot_compare_methods_digits",
    "plot_custom_scorer_and_selector",
    "plot_evaluate_report",
    "plot_finetune_frozen_trunk_sed",
    "plot_loss_landscape",
    "plot_search",
    "plot_sharpness_controls",
    "plot_text_classification",
    "plot_theory_bounds",
    "plot_tradeoff",
)
FAST = "SHARPBALANCE_FAST"  # shortens the examples


@pytest.fixture
def short(monkeypatch, tmp_path):
    """Shorten examples, and run them with one thread in an empty folder."""
    monkeypatch.setenv(FAST, "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example"])
    # Scorers that an example registers are removed for other tests.
    kept = dict(SHARPNESS_SCORERS)
    monkeypatch.setattr(SHARPNESS_SCORERS, "_factories", kept)
    yield
    plt.close("all")


@pytest.mark.filterwarnings("ignore:.*non-interactive:UserWarning")
@pytest.mark.filterwarnings(
    "ignore::sklearn_sharpbalance.exceptions.UndefinedMetricWarning"
)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else ())
        for path in SCRIPTS
    ],
    ids=lambda p: p.stem,
)
def test_shortened_examples_run(path, short, capsys):
    text = path.read_text()
    assert FAST in text
    wanted = ["figure.png"] if "sys.argv" in text else []
    sys.argv += wanted
    runpy.run_path(str(path), run_name="__main__")
    assert plt.get_fignums()
    assert [file.name for file in Path.cwd().iterdir()] == wanted  # no files are left


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_examples_run(path, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != FAST}
    environment |= {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_examples_have_a_title_and_a_description(path):
    text = path.read_text()
    _, docstring, _ = text.split('"""', 2)
    title, line, *rest = docstring.strip().splitlines()
    assert set(line) == {"="}
    assert len(line) == len(title)
    assert any(rest)


def outputs_of(path):
    notebook = nbformat.read(path, as_version=4)
    return [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_are_committed_with_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [o for o in outputs_of(path) if o.output_type == "error"]
    assert path.stat().st_size < 400_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_every_figure_of_a_notebook_is_shown_once(path):
    pictures = [
        o.data["image/png"]
        for o in outputs_of(path)
        if "image/png" in o.get("data", {})
    ]
    assert pictures
    assert len(set(pictures)) == len(pictures)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_no_output_of_a_notebook_is_wider_than_a_page(path):
    for output in outputs_of(path):
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        assert all(len(line) <= 100 for line in text.splitlines())
        assert output.get("name") != "stderr", output.text


def test_quickstart_covers_all_steps():
    path = EXAMPLES / "quickstart.ipynb"
    source = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
    for step in (".fit(", "to_frame(", "Display.", "GridSearchCV(", "make_pipeline("):
        assert step in source
    shown = [
        o.data["text/html"]
        for o in outputs_of(path)
        if "text/html" in o.get("data", {})
    ]
    assert any("Fitted ensemble" in html for html in shown)
    assert any('class="dataframe"' in html for html in shown)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_run(path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the kernel
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(EXAMPLES)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
