"""CPU time of the import, of ``--help`` and of the first fit in a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sklearn_sharpbalance

# CPU seconds of this process: other processes on the machine do not count.
IMPORT = """
import json, sys, time
start = time.process_time()
import torch, sklearn, skorch
before, between = set(sys.modules), time.process_time()
from sklearn_sharpbalance import *
seconds = [between - start, time.process_time() - between]
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
HEAVY = ["torchvision", "matplotlib", "dask", "distributed", "pandas", "polars", "onnx"]

HELP = """
import contextlib, io, json, runpy, sys, time
sys.argv = ["sklearn_sharpbalance", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("sklearn_sharpbalance", run_name="__main__")
print(json.dumps([time.process_time(), sorted(sys.modules)]))
"""
SCIKIT_LEARN = """
import json, sys, time
import sklearn
print(json.dumps([time.process_time(), sorted(sys.modules)]))
"""

FITS = """
import json, sys, time
from sklearn.datasets import load_breast_cancer
from sklearn_sharpbalance import {kind}
X, y = load_breast_cancer(return_X_y=True)
seconds = []
for _ in range(2):
    start = time.process_time()
    {kind}(random_state=0, device="cpu").fit(X, y).predict(X)
    seconds.append(time.process_time() - start)
print(json.dumps([seconds, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def run():
    """Function that runs a script in a new process and reads what it prints.

    The process may write bytecode: without it, Python compiles in every import.
    """
    root = Path(__file__).parent.parent  # found also where it is not installed
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run_script(script):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env=environment,
        )
        return json.loads(done.stdout)

    return run_script


@pytest.fixture(scope="module")
def measure(run):
    """Seconds of a second import, and the modules that it adds.

    The seconds are a pair: torch, scikit-learn and skorch; this package after them.

    The first import compiles the files, as it does once after every installation.
    """
    run(IMPORT)
    return run(IMPORT)


def test_the_import_takes_a_quarter_of_that_of_its_dependencies_at_most(measure):
    dependencies, package = measure[0]
    assert package <= dependencies / 4


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_where_they_are_used(package, measure):
    """skorch itself imports pandas where it is installed; that is not our doing."""
    _, modules = measure
    assert not [name for name in modules if name.partition(".")[0] == package]


def test_help_takes_less_than_the_import_of_scikit_learn(run, measure):
    run(HELP)  # compiles __main__
    seconds, modules = run(HELP)
    assert seconds < run(SCIKIT_LEARN)[0]
    assert not {"torch", "sklearn", "numpy"} & set(modules)


@pytest.mark.parametrize(
    "kind",
    [
        "SharpBalanceEnsembleClassifier",
        pytest.param("DiversifiedEnsembleClassifier", marks=pytest.mark.slow),
    ],
)
def test_the_first_fit_takes_at_most_twice_the_second(run, measure, kind):
    (first, second), modules = run(FITS.format(kind=kind))
    assert first <= 2 * second
    assert "torch._dynamo" not in modules


def test_names_are_imported_when_they_are_used(run):
    script = """
import json, sys
import sklearn_sharpbalance as package
before = "torch" in sys.modules
kind = package.DeepEnsembleClassifier.__name__
print(json.dumps([before, kind, "torch" in sys.modules, package.metrics.__name__]))
"""
    assert run(script) == [
        False,
        "DeepEnsembleClassifier",
        True,
        "sklearn_sharpbalance.metrics",
    ]


def test_dir_lists_what_can_be_imported():
    names = dir(sklearn_sharpbalance)
    assert {*sklearn_sharpbalance.__all__, "metrics", "__version__"} <= set(names)
    assert set(sklearn_sharpbalance.HOMES) == set(sklearn_sharpbalance.__all__)
    for name in names:
        getattr(sklearn_sharpbalance, name)


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'DeepEnsemble'"):
        _ = sklearn_sharpbalance.DeepEnsemble
