"""Names in ``__all__`` exist, are sorted and are unique."""

import importlib
import inspect
import pkgutil
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import sklearn_sharpbalance
from tests.conftest import WithoutKernels

# __main__ is a command; kernels are imported only if Triton is installed.
KERNELS = tuple(Path(file).stem for file in WithoutKernels.FILES)
LEFT_OUT = ("__main__",) if find_spec("triton") else ("__main__", *KERNELS)
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(
        sklearn_sharpbalance.__path__, "sklearn_sharpbalance."
    )
    if not name.endswith(LEFT_OUT)
)
FOLDERS = [
    name for name in MODULES if hasattr(importlib.import_module(name), "__path__")
]


def in_order(names):
    """Sort constants, classes and functions, each alphabetically."""

    def place(name):
        kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
        return kind, name

    return sorted(names, key=place)


@pytest.mark.parametrize("name", ["sklearn_sharpbalance", *MODULES])
def test_names_exist_in_order_and_once(name):
    module = importlib.import_module(name)
    if name.rpartition(".")[2].startswith("_") and not hasattr(module, "__all__"):
        return  # private modules need no __all__
    names = module.__all__
    assert len(set(names)) == len(names)
    assert list(names) == in_order(names)
    missing = [each for each in names if not hasattr(module, each)]
    assert not missing


@pytest.mark.parametrize("name", FOLDERS)
def test_packages_export_the_names_of_their_modules(name):
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{each} has no docstring"
            assert value.__module__.startswith("sklearn_sharpbalance.")


def test_the_package_exports_estimators_and_networks():
    names = set(sklearn_sharpbalance.__all__)
    assert {
        "DeepEnsembleClassifier",
        "MLP",
        "ResNet18",
        "SharpBalanceEnsembleClassifier",
        "SmallCNN",
        "SmallResNet",
        "WideResNet",
    } <= names


def test_exported_estimators_are_those_of_the_subpackage():
    import sklearn_sharpbalance.ensemble as ensemble

    for name in ensemble.__all__:
        if name.endswith("Classifier"):
            assert getattr(sklearn_sharpbalance, name) is getattr(ensemble, name)


def test_the_version_is_that_of_the_distribution():
    project = Path(__file__).parent.parent / "pyproject.toml"
    version = tomllib.loads(project.read_text())["project"].get("version")
    assert version in (None, sklearn_sharpbalance.__version__)  # None: read from there


PARAMETERS = {
    "estimator": None,
    "n_estimators": 3,
    "rho": None,
    "flat_ratio": 0.4,
    "sam": None,
    "warmup": "sam",
    "warmup_epochs": 0.5,
    "max_epochs": None,
    "reselect_every": None,
    "lr": None,
    "lr_schedule": None,
    "batch_size": None,
    "optimizer": None,
    "standardize": True,
    "train_transform": "auto",
    "sharpness": "fisher_trace",
    "selection": "flattest",
    "aggregation": "mean_logit",
    "validation_fraction": None,
    "early_stopping": False,
    "class_weight": None,
    "warm_start": False,
    "engine": "auto",
    "device": "auto",
    "precision": "auto",
    "n_jobs": None,
    "memory": None,
    "checkpoint_dir": None,
    "callbacks": None,
    "random_state": None,
    "verbose": 0,
}


def test_public_methods_and_attributes_of_the_estimator():
    clf = sklearn_sharpbalance.SharpBalanceEnsembleClassifier()
    params = clf.get_params()
    assert {name: params.get(name, "missing") for name in PARAMETERS} == PARAMETERS


@pytest.mark.parametrize(
    "kind", ["DeepEnsembleClassifier", "SharpBalanceEnsembleClassifier"]
)
def test_every_parameter_is_documented(kind):
    kind = getattr(sklearn_sharpbalance, kind)
    head = inspect.getdoc(kind).partition("Attributes")[0]
    for name in kind().get_params():
        assert name in head, f"{kind.__name__}.{name} is not in the docstring"
