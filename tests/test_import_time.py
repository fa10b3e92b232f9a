"""What ``import sklearn_sharpbalance`` costs beside torch, scikit-learn and skorch."""

import json
import os
import subprocess
import sys
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


@pytest.fixture(scope="module")
def measure(tmp_path_factory):
    """Seconds of a second import, and the modules that were not there before.

    The first import compiles the files, as it does once after every installation;
    the bytecode has a folder of its own, since some environments forbid writing it.
    """
    root = Path(__file__).parent.parent  # found also where it is not installed
    environment = dict(
        os.environ, PYTHONPYCACHEPREFIX=str(tmp_path_factory.mktemp("pyc"))
    )
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def once():
        done = subprocess.run(
            [sys.executable, "-c", MEASURE],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env=environment,
        )
        return json.loads(done.stdout)

    once()
    return once()


def test_the_import_is_short(measure):
    assert measure[0] <= MOST_SECONDS


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_where_they_are_used(package, measure):
    """skorch itself imports pandas where it is installed; that is not our doing."""
    _, modules = measure
    assert not [name for name in modules if name.partition(".")[0] == package]
