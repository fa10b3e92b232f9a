"""A file imports only from lower layers or from its own folder."""

import ast
import re
from pathlib import Path

import pytest
from sklearn.datasets import load_iris

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

PACKAGE = Path(__file__).parent.parent / "sklearn_sharpbalance"
LAYERS = [
    ["exceptions", "_version"],
    ["_validation", "_triton_probe"],
    ["_triton", "_parameters", "runtime"],
    ["optim", "autodiff", "networks", "theory", "corruption"],
    ["sharpness", "selection", "datasets"],
    ["data"],
    ["members"],
    ["metrics"],
    ["engine"],
    ["aggregation"],
    ["persistence"],
    ["plotting", "training"],
    ["joint"],
    ["ensemble"],
    ["model_selection"],
    ["evaluation"],
    ["__init__"],
    ["__main__"],
]
PRIVATE = re.compile(
    r"\btorch\._(?!_)|(?<!balance)\._(modules|buffers|parameters|version)\b"
    r"|_orig_mod|_non_persistent_b"
)
LAYER = {name: layer for layer, packages in enumerate(LAYERS) for name in packages}
FILES = sorted(PACKAGE.rglob("*.py"))


def package_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_packages(path):
    """Yield the subpackages that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} relative import"
            if node.module == PACKAGE.name:
                names = [f"{PACKAGE.name}.{alias.name}" for alias in node.names]
            else:
                names = [node.module or ""]
        for name in names:
            package, _, rest = name.partition(".")
            if package == PACKAGE.name and rest:
                imported = rest.split(".")[0]
                # Other names are exported by the package itself.
                yield imported if imported in LAYER else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_are_from_lower_layers(path):
    package = package_of(path)
    for other in imported_packages(path):
        assert other == package or LAYER[other] < LAYER[package], (
            f"{path.relative_to(PACKAGE)} in layer {LAYER[package]} imports "
            f"{other} in layer {LAYER[other]}"
        )


def test_every_package_has_a_layer():
    assert {package_of(path) for path in FILES} == set(LAYER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 500


def test_the_chain_of_calls_is_as_long_as_documented(monkeypatch):
    root = PACKAGE.parent
    monkeypatch.syspath_prepend(root / "examples" / "benchmarks")
    import trace_fit

    X, y = load_iris(return_X_y=True)
    clf = SharpBalanceEnsembleClassifier(max_epochs=2, random_state=0)
    _, chain = trace_fit.trace(lambda: clf.fit(X, y))
    assert chain[0].endswith(".fit")
    assert chain[-1].endswith(trace_fit.STEP)
    text = (root / "CONTRIBUTING.md").read_text()
    assert f"a fit on iris passes: {len(chain)} frames" in text


def test_one_file_uses_private_attributes_of_torch():
    files = [path.name for path in FILES if PRIVATE.search(path.read_text())]
    assert files == ["torch_internals.py"]
