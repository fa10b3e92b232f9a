"""Short runs of the experiments, outside the default suite: pytest -m slow here."""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
collect_ignore_glob = ["_*.py", "bench_*.py", "reproduce.py"]


@pytest.fixture
def two_kinds(monkeypatch):
    """Measure two kinds of corruption only."""
    import _reproduce_measure
    import _reproduce_sed

    draw = _reproduce_measure.draw

    def draw_all(images, folder):
        names, path = draw(images, folder)
        assert len(names) == len(np.load(path, mmap_mode="r")) == 15 * 5
        return names[: 2 * 5], path  # five severities of each kind

    monkeypatch.setattr(_reproduce_measure, "draw", draw_all)
    monkeypatch.setattr(_reproduce_sed, "draw", draw_all)


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs ``reproduce.py`` in this process."""
    import reproduce

    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)  # for other tests

    def run_command(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            reproduce.main()
        return end.value.code

    return run_command
