"""What ``import sklearn_sharpbalance`` costs beside torch, scikit-learn and skorch."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

# CPU seconds of this process: other processes on the machine do not count.
MEASURE = """
import json, sys, time
import torch, sklearn, skorch
before = set(sys.modules)
start = time.process_time()
import sklearn_sharpbalance
seconds = time.process_time() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
MOST_SECONDS = 0.3
HEAVY = ["torchvision", "matplotlib", "dask", "distributed", "pandas", "polars", "onnx"]


@cache
def measure(run):
    """Seconds, and the modules that were not there before."""
    root = Path(__file__).parent.parent  # found also where it is not installed
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    )
    seconds, modules = json.loads(done.stdout)
    return seconds, modules


def test_the_import_is_short():
    """The best of three: the first one may still have to compile the files."""
    best = min(measure(run)[0] for run in range(3))
    assert best <= MOST_SECONDS


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_where_they_are_used(package):
    """skorch itself imports pandas where it is installed; that is not our doing."""
    _, modules = measure(0)
    assert not [name for name in modules if name.partition(".")[0] == package]
