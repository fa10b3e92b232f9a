"""Documentation: code blocks run, links resolve, public names are listed."""

import importlib
import inspect
import io
import pkgutil
import re
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_iris
from sklearn.utils import shuffle

import sklearn_sharpbalance
from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.members.net import NET_DEFAULTS
from sklearn_sharpbalance.selection import SUBSET_SELECTORS
from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS
from sklearn_sharpbalance.training import image_recipe, table_recipe

ROOT = Path(__file__).parent.parent
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
RESULTS = EXAMPLES / "experiments" / "RESULTS.md"
PAGES = sorted(
    [*DOCS.glob("*.md"), *DOCS.glob("user_guide/*.md"), DOCS / "notebooks" / "index.md"]
)
TEXTS = [*PAGES, RESULTS, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING"))]
PACKAGE = sklearn_sharpbalance.__name__
RECIPES = ("fastapi", "mlflow", "shap")  # blocks with them need not run
LONG = "production"  # a page of exports and recipes
PUBLIC = [
    PACKAGE,
    *(
        f"{PACKAGE}.{module.name}"
        for module in pkgutil.iter_modules(sklearn_sharpbalance.__path__)
        if not module.name.startswith("_")
    ),
]


def relative(path):
    return str(path.relative_to(ROOT))


# The reference ----------------------------------------------------------------------


def listed_names():
    """Return (module, name) of all entries of the reference, in order."""
    for path in sorted((DOCS / "api").glob("*.rst")):
        module, inside = None, False
        for line in path.read_text().splitlines():
            if match := re.match(r"\.\. (?:current)?module:: (\S+)", line):
                module, inside = match[1], False
            elif match := re.match(r"\.\. py:data:: (\S+)", line):
                yield module, match[1]
            elif line.startswith(".. autosummary::"):
                inside = True
            elif line and not line.startswith(" "):
                inside = False
            elif inside and (match := re.fullmatch(r"   (\w+)", line)):
                yield module, match[1]


LISTED = list(listed_names())


def test_entries_of_the_reference_exist_and_are_unique():
    assert len(LISTED) > 150
    objects = {}
    for module, name in LISTED:
        value = getattr(importlib.import_module(module), name)
        objects.setdefault((name, id(value)), []).append(module)
    assert not {key: at for key, at in objects.items() if len(at) > 1}


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package):
    listed = {
        (name, id(getattr(importlib.import_module(module), name)))
        for module, name in LISTED
    }
    module = importlib.import_module(package)
    names = [(name, id(getattr(module, name))) for name in module.__all__]
    assert not [name for name, identity in names if (name, identity) not in listed]


# Links ------------------------------------------------------------------------------


def page_exists(name, start):
    """Return whether the target of ``{doc}`name``` exists."""
    folder = DOCS if name.startswith("/") else start.parent
    path = (folder / name.lstrip("/")).resolve()
    if path.parent.name == "auto_examples":
        example = EXAMPLES / f"{path.stem}.py"
        return path.stem == "index" or example.exists()
    if path.parent.name == "notebooks" and (EXAMPLES / f"{path.stem}.ipynb").exists():
        return True
    return any(path.with_suffix(suffix).exists() for suffix in (".md", ".rst"))


def toctree_entries(text):
    for body in re.findall(r"```\{toctree\}\n(.*?)```", text, flags=re.S):
        for line in body.splitlines():
            entry = re.sub(r".*<(.+)>", r"\1", line).strip()
            if entry and not entry.startswith(":"):
                yield entry


def letters(text):
    """Return the letters of a heading or anchor; sites differ in the rest."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_exist(page):
    text = page.read_text()
    names = re.findall(r"\{doc\}`(?:[^`<]*<)?([^`<>]+)>?`", text)
    names += toctree_entries(text)
    assert not [name for name in names if not page_exists(name, page)]


@pytest.mark.parametrize("page", TEXTS, ids=relative)
def test_links_to_files_and_headings_exist(page):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            text = (RESULTS if target.name == "results.md" else target).read_text()
            headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
            assert letters(anchor) in map(letters, headings), link


@pytest.mark.parametrize("page", [*PAGES, *sorted(EXAMPLES.glob("*.py"))], ids=relative)
def test_names_in_the_text_exist(page):
    roles = r"\{?:?(?:func|class|mod|data|meth)\}?:?`(?:[^`<]*<)?~?([\w.]+)>?`"
    for name in re.findall(roles, page.read_text()):
        assert name.startswith(PACKAGE), name
        value, *rest = name.split(".")
        value = importlib.import_module(value)
        for i, part in enumerate(rest):
            if not hasattr(value, part):
                value = importlib.import_module(".".join([PACKAGE, *rest[: i + 1]]))
            else:
                value = getattr(value, part)


@pytest.mark.parametrize("page", TEXTS, ids=relative)
def test_files_that_the_text_names_exist(page):
    text = page.read_text()
    named = re.findall(r"(?:`|python )((?:examples|tests|docs)/[\w/.-]+)", text)
    missing = [n for n in named if not (ROOT / n.rstrip("./")).exists()]
    assert set(missing) <= {"docs/_build/html"}
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"`(?:[\w/]+/)?(test_\w+\.py)`", text)) <= tests


# Code -------------------------------------------------------------------------------


class MyModule(torch.nn.Module):
    """The user's module in the guide."""

    def __init__(self, n_features=4, n_classes=3, width=8):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(n_features, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, n_classes),
        )

    def forward(self, x):
        return self.layers(x)


class MyTransformer(torch.nn.Module):
    """Take the output of a tokenizer."""

    def __init__(self, n_classes):
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, n_classes)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return self.head((self.words(input_ids) * mask).mean(1))


def tokenizer(texts, **_):
    ids = np.array([[len(word) % 10 for word in text.split()] for text in texts])
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


@pytest.fixture(scope="module")
def fitted():
    X, y = shuffle(*load_iris(return_X_y=True), random_state=0)
    X, y = X[:60], y[:60]
    few = {"n_estimators": 2, "max_epochs": 2, "random_state": 0}
    clf = SharpBalanceEnsembleClassifier(**few).fit(X, y)
    deep = DeepEnsembleClassifier(**few).fit(X, y)
    return X, y, clf, deep


@pytest.fixture
def names(fitted, tmp_path, monkeypatch):
    """Return the variables that the guide assumes, in a folder with its files."""
    monkeypatch.chdir(tmp_path)
    # Short, since only execution is tested.
    monkeypatch.setitem(NET_DEFAULTS, "max_epochs", 2)
    monkeypatch.setattr(table_recipe, "EPOCHS", (2, 2))
    monkeypatch.setattr(image_recipe, "EPOCHS", (1, 1))
    narrow = tuple(size._replace(width=4) for size in image_recipe.SIZES)
    monkeypatch.setattr(image_recipe, "SIZES", narrow)
    monkeypatch.setattr(image_recipe, "PASSED_IMAGES", 0)
    X, y, clf, deep = fitted
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(6, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(6) % 3
    for image, label in zip(images, labels):
        (tmp_path / "images" / f"{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "images" / f"{label}" / "0.png")
    np.save(tmp_path / "fog.npy", np.repeat(images[None], 5, 0).reshape(-1, 32, 32, 3))
    np.save(tmp_path / "labels.npy", np.tile(labels, 5))
    for i, image in enumerate(np.repeat(images, 2, axis=0)):
        (tmp_path / "photos" / f"class {i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / f"class {i % 2}" / f"{i}.png")
    texts = ["good film", "bad film"] * 6
    return {
        **{"X": X, "y": y, "clf": clf, "deep": deep},
        **{"X_test": X, "y_test": y, "images": images, "labels": labels},
        **{"MyModule": MyModule, "MyTransformer": MyTransformer},
        **{"tokenizer": tokenizer, "texts": texts, "text_labels": [1, 0] * 6},
        "X_batch": torch.as_tensor(X, dtype=torch.float32),
        "y_batch": torch.as_tensor(y),
        "folder": tmp_path,
        "DeepEnsembleClassifier": DeepEnsembleClassifier,
        "SharpBalanceEnsembleClassifier": SharpBalanceEnsembleClassifier,
    }


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def lacks_a_package(code):
    imported = re.findall(r"^(?:import|from) (\w+)", code, flags=re.M)
    return any(name in RECIPES and find_spec(name) is None for name in imported)


def run_blocks(page, names):
    for number, code in enumerate(blocks(page)):
        if lacks_a_package(code):
            continue
        with redirect_stdout(io.StringIO()):
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
    plt.close("all")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem == LONG else ())
        for page in PAGES
        if blocks(page)
    ],
    ids=relative,
)
def test_code_of_the_pages_runs(page, names):
    run_blocks(page, names)


def test_code_of_the_readme_runs_as_pasted(names):
    run_blocks(ROOT / "README.md", {"__name__": "readme"})


def test_code_of_contributing_runs(names, monkeypatch):
    for registry in (SHARPNESS_SCORERS, SUBSET_SELECTORS):
        monkeypatch.setattr(registry, "_factories", dict(registry))
    names = {"X": names["X"], "y": names["y"], "__name__": "contributing"}
    run_blocks(ROOT / "CONTRIBUTING.md", names)
    engine = names["PlainEngine"]()  # has all methods that an engine must have
    assert engine.refusal(None, None, None) is None


def test_parameters_in_the_text_exist():
    """``name=`` in backticks is a parameter of a public object."""
    known = {
        parameter
        for module, name in LISTED
        if callable(value := getattr(importlib.import_module(module), name))
        for function in [value, *vars(value).values()]
        if inspect.isroutine(function) or inspect.isclass(function)
        for parameter in _parameters(function)
    }
    for page in PAGES:
        for name in re.findall(r"`([a-zX]\w*)=[^`]*`", page.read_text()):
            others = {"scoring", "resources"}  # of a search, of dask
            assert name in known | others, (page.name, name)


def _parameters(function):
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
