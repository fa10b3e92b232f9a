"""Arrows between files point down, and the package stays within its budget."""

import ast
import re
from pathlib import Path

from sklearn.datasets import load_iris

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

PACKAGE = Path(__file__).parent.parent / "sklearn_sharpbalance"
# Lower these numbers whenever the package gets lighter.
BUDGET = {"lines": 34_000, "files": 176}
OF_A_FIT = {"files": 55, "functions": 450}  # on iris
LAYERS = [
    ["exceptions", "_version"],
    ["_validation", "_triton_probe"],
    ["_triton", "_parameters", "runtime", "datasets", "arrays"],
    ["optim", "autodiff", "networks", "theory", "corruption"],
    ["sharpness", "selection"],
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


def test_imports_are_from_lower_layers():
    for path in FILES:
        package = package_of(path)
        for other in imported_packages(path):
            assert other == package or LAYER[other] < LAYER[package], (
                f"{path.relative_to(PACKAGE)} in layer {LAYER[package]} imports "
                f"{other} in layer {LAYER[other]}"
            )


def test_every_package_has_a_layer():
    assert {package_of(path) for path in FILES} == set(LAYER)


def test_files_stay_short():
    assert not [path for path in FILES if len(path.read_text().splitlines()) > 500]


def test_the_package_stays_within_its_budget():
    lines = sum(len(path.read_text().splitlines()) for path in FILES)
    assert lines <= BUDGET["lines"]
    assert len(FILES) <= BUDGET["files"]


def test_a_default_fit_passes_few_files_and_functions(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE.parent / "examples" / "benchmarks")
    import trace_fit

    X, y = load_iris(return_X_y=True)
    clf = SharpBalanceEnsembleClassifier(max_epochs=2, random_state=0)
    places, _ = trace_fit.trace(lambda: clf.fit(X, y))
    assert len(trace_fit.files_of(places)) <= OF_A_FIT["files"]
    assert len(places) <= OF_A_FIT["functions"]


def test_one_file_uses_private_attributes_of_torch():
    files = [path.name for path in FILES if PRIVATE.search(path.read_text())]
    assert files == ["torch_internals.py"]
