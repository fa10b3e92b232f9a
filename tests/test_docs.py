"""Names, links, numbers and code of the documentation are correct."""

import ast
import builtins
import importlib
import inspect
import io
import json
import pkgutil
import re
import runpy
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.utils import shuffle

import sklearn_sharpbalance
from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.members.net import NET_DEFAULTS
from sklearn_sharpbalance.model_selection import EnsembleSearchCV
from sklearn_sharpbalance.training import table_recipe

ROOT = Path(__file__).parent.parent
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
RESULTS = EXAMPLES / "benchmarks" / "results"
GUIDE = sorted((DOCS / "user_guide").glob("*.md"))
PAGES = sorted([*DOCS.glob("*.md"), *GUIDE, DOCS / "notebooks" / "index.md"])
PACKAGE = sklearn_sharpbalance.__name__
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


def test_every_page_of_the_reference_is_in_its_index():
    index = (DOCS / "api" / "index.rst").read_text().partition("toctree::")[2]
    names = re.findall(r"^   (\w+)$", index, flags=re.M)
    assert sorted(names) == sorted(
        path.stem for path in (DOCS / "api").glob("*.rst") if path.stem != "index"
    )


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


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_exist(page):
    text = page.read_text()
    names = re.findall(r"\{doc\}`(?:[^`<]*<)?([^`<>]+)>?`", text)
    names += toctree_entries(text)
    assert not [name for name in names if not page_exists(name, page)]
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_page_can_be_reached():
    reached = {
        (page.parent / entry).resolve()
        for page in PAGES
        for entry in toctree_entries(page.read_text())
    }
    pages = {page.with_suffix("").resolve() for page in PAGES} - {DOCS / "index"}
    assert pages <= reached


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


def test_files_that_the_text_names_exist():
    for page in PAGES:
        for name in re.findall(r"`((?:examples|tests|docs)/[\w/.]+)", page.read_text()):
            if name != "docs/_build/html" and "RESULTS.md" not in name:
                assert (ROOT / name.rstrip("./")).exists(), (page.name, name)


# Numbers ----------------------------------------------------------------------------


class Attributes(dict):
    """A dictionary whose keys are also attributes, as in the templates."""

    def __getattr__(self, name):
        return self[name]


@cache
def measured():
    """Return the variables of the templates."""
    reader = runpy.run_path(str(DOCS / "_ext" / "measured.py"))
    return json.loads(json.dumps(reader["read_results"]()), object_hook=Attributes)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_measured_numbers_are_filled_in(page):
    for expression in re.findall(r"\{\{ (.*?) \}\}", page.read_text()):
        assert "|" not in expression  # would end a cell of a table
        assert eval(expression, {}, measured())


def test_sentences_about_measured_numbers():
    """Sentences of the guide that depend on measured numbers."""
    gpu, cpu = measured()["gpu"], measured()["cpu"]
    assert gpu.sgd_epoch_s < gpu.sam_epoch_s
    assert 0.95 < gpu.balanced_equal_epoch_s / gpu.sam_epoch_s < 1
    assert gpu.sam_epoch_s < gpu.balanced_epoch_s
    assert gpu.balanced_equal_epoch_s_at_512 < gpu.sam_epoch_s_at_512
    assert sum(gpu.balanced_places) > sum(gpu.balanced_equal_places)
    assert cpu.machine.cores == 2
    assert cpu.search.memory < cpu.search.plain


def number(cell):
    """Return the value and the half-width of ``+0.35 ± 0.16``."""
    value, _, half = cell.partition(" ± ")
    return float(value), float(half or 0)


def test_sentences_about_digits():
    """Sentences of the page "Which method when" that depend on results."""
    cost, rules = measured()["confirm"], measured()["rules"]
    gain = {m: number(row["over deep ensemble"] or "0") for m, row in cost.items()}
    members = gain["deep ensemble, twice the members"]
    assert members == max(gain.values())  # no SAM method gains more
    for method in ("SAM", "ASAM"):
        assert gain[method][0] > gain[method][1]  # the intervals exclude 0 ...
    assert gain["sharpest"][0] < gain["sharpest"][1]  # ... and include it
    for method in ("SAM", "ASAM", "SAM, twice the members"):
        for metric in ("NLL", "ECE"):
            more = cost["deep ensemble, twice the members"][metric]
            assert cost[method][metric] < more <= cost["deep ensemble"][metric]
    tempered = {m: float(row["NLL, tempered"]) for m, row in cost.items()}
    assert min(tempered.values()) == tempered["deep ensemble, twice the members"]
    assert abs(tempered["SAM"] - tempered["deep ensemble"]) < 0.005
    stars = (RESULTS / "reproduce_confirm.md").read_text()
    over = f"{cost['deep ensemble, twice the members']['over deep ensemble']} *"
    assert over in stars  # the only one that is significant by Holm's test
    for method in ("SAM", "ASAM", "sharpest", "SAM, twice the members"):
        assert f"{cost[method]['over deep ensemble']} *" not in stars
    for rule in ("flattest", "flattest_union", "random", "same", "all"):
        value, half = number(rules[rule]["over sharpest"])
        assert abs(value) < half  # no rule differs
    value, half = number(rules["none"]["over sharpest"])
    assert value < -half
    assert rules["sharpest, SGD warm-up"]["NLL"] == rules["deep ensemble"]["NLL"]


def test_sentences_about_pictures():
    wide, narrow = measured()["headline"], measured()["ablation"]
    assert number(wide["SAM"]["over deep ensemble"])[0] > 0
    clean, half = number(wide["SAM"]["clean over deep ensemble"])
    assert clean > half
    tempered = "corrupted NLL, tempered"
    assert wide["SAM"][tempered] < wide["deep ensemble"][tempered]
    assert number(narrow["all"]["over deep ensemble"])[0] < 0
    level, half = number(narrow["flattest, late"]["at equal cost"])
    assert abs(level) < half
    clean, half = number(narrow["flattest, late"]["clean at equal cost"])
    assert clean < -half
    for row, other, sign in (
        (wide, "SAM", 1),
        (wide, "sharpest", 1),
        (wide, "deep ensemble", 1),
        (narrow, "SAM", 1),
        (narrow, "sharpest", 1),
        (narrow, "deep ensemble", -1),
    ):
        value, half = number(row["flattest"][f"over {other}"])
        assert sign * value > half
    late = measured()["headline_same_cost"]["flattest, late"]
    assert abs(number(late["over deep ensemble"])[0]) < 0.1  # no better ensembles
    for name in ("corrupted NLL", tempered):
        assert late[name] < wide["deep ensemble"][name]
    more = measured()["ablation_same_cost"]["deep ensemble, twice the members"]
    assert number(more["at equal cost"])[0] < 0


def test_cells_of_tables_are_read_by_group_method_and_column():
    reader = runpy.run_path(str(DOCS / "_ext" / "measured.py"))
    text = "**a**, 2 rows\n\n| m | x |\n|---|:--|\n| p | 1 |\n| q |  |\n\ntext\n"
    text += "| m | x | z |\n|---|---|---|\n| p | 5 | 3 |\n\n"
    text += "**b**\n\n| m | y |\n|---|---|\n| p | 2 ± 1 * |\n"
    assert reader["read_tables"](text) == {
        "a": {"p": {"m": "p", "x": "1", "z": "3"}, "q": {"m": "q", "x": ""}},
        "b": {"p": {"m": "p", "y": "2 ± 1"}},
    }


def test_links_of_benchmark_texts_are_adapted(monkeypatch):
    pytest.importorskip("sphinx", reason="needs sphinx: pip install -e '.[docs]'")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    at_home = importlib.import_module("results").at_home
    home = "/../examples/benchmarks"
    moved = {
        "![a](results/cpu_scaling.png)": f"![a]({home}/results/cpu_scaling.png)",
        "[b](results/cpu.json)": f"[b](path:{home}/results/cpu.json)",
        "[c](nowhere.md), [d](results)": "c, d",
        "[e](https://x.org) [f](#here)": "[e](https://x.org) [f](#here)",
    }
    assert {text: at_home(text) for text in moved} == moved


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
    X, y, clf, deep = fitted
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(6, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(6) % 3
    np.savez(tmp_path / "pictures.npz", images=images, labels=labels)
    np.save(tmp_path / "fog.npy", np.repeat(images[None], 5, 0).reshape(-1, 32, 32, 3))
    np.save(tmp_path / "labels.npy", np.tile(labels, 5))
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


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem == "search" else ())
        for page in PAGES
        if blocks(page)
    ],
    ids=relative,
)
def test_code_of_the_pages_runs(page, names):
    for number, code in enumerate(blocks(page)):
        with redirect_stdout(io.StringIO()):
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
    plt.close("all")


def test_names_in_the_guide_are_imported_before_their_use():
    """In the order of the pages; readers have the variables of ``names``."""
    known = {"X", "y", "clf", "deep", "images", "labels", "MyModule", "folder"}
    known |= {"MyTransformer", "tokenizer", "texts", "text_labels"}
    known |= {"X_batch", "y_batch", *dir(builtins)}
    index = (DOCS / "user_guide" / "index.md").read_text()
    pages = [DOCS / "user_guide" / f"{name}.md" for name in toctree_entries(index)]
    for page in pages:
        nodes = [n for code in blocks(page) for n in ast.walk(ast.parse(code))]
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                known |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                known.add(node.name)
            elif isinstance(node, ast.arg):
                known.add(node.arg)
        used = [node for node in nodes if isinstance(node, ast.Name)]
        known |= {name.id for name in used if isinstance(name.ctx, ast.Store)}
        assert not {name.id for name in used} - known, page.name


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


def test_inherited_docstrings_refer_to_no_other_site(monkeypatch):
    """As Sphinx warns of labels and terms that it does not know."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import docstrings

    found = []
    for name in ("predict_proba", "score", "n_features_in_"):
        lines = getattr(EnsembleSearchCV, name).__doc__.splitlines()
        found += [line for line in lines if ":term:" in line or ":ref:" in line]
        docstrings.make_safe(None, "method", name, None, None, lines)
        assert not [line for line in lines if ":term:" in line or ":ref:" in line]
    assert found  # or there is nothing to drop any more
