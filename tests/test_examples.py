"""Examples and notebooks run; notebooks are committed with their outputs."""

import json
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
    "plot_finetune_backbone",
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


@pytest.mark.slow
def test_the_benchmark_of_sources_runs(tmp_path, monkeypatch):
    script = EXAMPLES / "benchmarks" / "bench_data.py"
    monkeypatch.syspath_prepend(script.parent)
    options = ["--short", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bench_data", *options])
    runpy.run_path(str(script), run_name="__main__")
    found = json.loads((tmp_path / "data.json").read_text())["cpu"]
    reads = {k: row["reads_per_item"] for k, row in found["speed"]["sources"].items()}
    assert reads["array"] is None
    assert reads["Dataset"] == reads["Dataset, kept in a file"] < 2
    assert min(reads["stream"], reads["Dataset, read at each use"]) >= 6
    assert set(found["memory"]) == set(reads)
    array, *files = found["der"]["rows"][:4]
    assert [row["n_buffer"] for row in files] == [60, 6, 0]
    assert [row["der"] for row in files] == [array["der"]] * 3
    assert "stream, sorted" in (tmp_path / "data.md").read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_are_committed_with_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert path.stat().st_size < 400_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_run(path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the kernel
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(EXAMPLES)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
