"""Names in ``__all__`` exist, are sorted and are unique."""

import importlib
import inspect
import pkgutil
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
    names = getattr(module, "__all__", [])  # the list of a package may be enough
    assert len(set(names)) == len(names)
    assert list(names) == in_order(names)
    missing = [each for each in names if not hasattr(module, each)]
    assert not missing


@pytest.mark.parametrize("name", FOLDERS)
def test_packages_list_and_document_their_names(name):
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{each} has no docstring"
            assert value.__module__.startswith("sklearn_sharpbalance.")
