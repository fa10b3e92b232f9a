"""CPU time of the import, of ``--help`` and of the first fit in a process."""

import compileall
import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import sklearn_sharpbalance

# CPU seconds of the process: other processes on the machine do not count.
FIRST_FIT = """
import json, sys, time
start = time.process_time()
import sklearn_sharpbalance
lazy, own = "torch" not in sys.modules, time.process_time() - start
start = time.process_time()
import sklearn
scikit_learn = time.process_time() - start
import torch, skorch
before, dependencies = set(sys.modules), time.process_time() - start
start = time.process_time()
from sklearn_sharpbalance import *
own += time.process_time() - start
added = sorted(set(sys.modules) - before)
names = [sklearn_sharpbalance.DeepEnsembleClassifier.__name__]
names += [sklearn_sharpbalance.metrics.__name__]
from sklearn.datasets import load_breast_cancer
X, y = load_breast_cancer(return_X_y=True)
fits = []
for _ in range(2):
    start = time.process_time()
    {kind}(random_state=0, device="cpu").fit(X, y).predict(X)
    fits.append(time.process_time() - start)
pictures = torch.zeros(20, 3, 8, 8, dtype=torch.uint8).numpy()
few = dict(n_estimators=1, max_epochs=1, device="cpu")
{kind}(**few).fit(pictures, y[:20])  # a convolutional network
compiler = "torch._dynamo" in sys.modules
print(json.dumps([lazy, scikit_learn, dependencies, own, added, names, fits, compiler]))
"""
Measured = namedtuple(
    "Measured", "lazy scikit_learn dependencies own added names fits compiler"
)
HEAVY = ["torchvision", "matplotlib", "dask", "distributed", "pandas", "polars", "onnx"]
HEAVY += ["triton"]

HELP = """
import contextlib, io, json, runpy, sys, time
sys.argv = ["sklearn_sharpbalance", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("sklearn_sharpbalance", run_name="__main__")
print(json.dumps([time.process_time(), sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def run():
    """Return a function that runs a script in a new process and reads its output.

    The package is compiled before, as after an installation.
    """
    root = Path(__file__).parent.parent  # found also where it is not installed
    compileall.compile_dir(root / "sklearn_sharpbalance", quiet=1)

    def run_script(script):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
        )
        return json.loads(done.stdout)

    return run_script


@pytest.fixture(scope="module")
def measure(run):
    """Return the numbers of a process that imports the package and fits twice."""
    return Measured(*run(FIRST_FIT.format(kind="SharpBalanceEnsembleClassifier")))


def test_the_import_takes_a_quarter_of_that_of_its_dependencies_at_most(measure):
    assert measure.own <= measure.dependencies / 4


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_lazily(package, measure):
    """skorch imports pandas if it is installed, which does not count."""
    assert not [name for name in measure.added if name.partition(".")[0] == package]


def test_help_takes_less_than_the_import_of_scikit_learn(run, measure):
    seconds, modules = run(HELP)
    assert seconds < measure.scikit_learn
    assert not {"torch", "sklearn", "numpy"} & set(modules)


def test_the_first_fit_takes_at_most_twice_the_second(measure):
    assert measure.fits[0] <= 2 * measure.fits[1]
    assert not measure.compiler


@pytest.mark.slow
def test_the_first_joint_fit_takes_at_most_twice_the_second(run):
    measured = Measured(*run(FIRST_FIT.format(kind="DiversifiedEnsembleClassifier")))
    assert measured.fits[0] <= 2 * measured.fits[1]
    assert not measured.compiler


def test_names_are_imported_when_they_are_used(measure):
    assert measure.lazy
    assert measure.names == ["DeepEnsembleClassifier", "sklearn_sharpbalance.metrics"]


def test_dir_lists_what_can_be_imported():
    names = dir(sklearn_sharpbalance)
    assert {*sklearn_sharpbalance.__all__, "metrics", "__version__"} <= set(names)
    assert set(sklearn_sharpbalance.HOMES) == set(sklearn_sharpbalance.__all__)
    for name in names:
        getattr(sklearn_sharpbalance, name)


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'DeepEnsemble'"):
        _ = sklearn_sharpbalance.DeepEnsemble
