"""Edited code, data and settings get another name or description."""

import functools
import importlib

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.exceptions import CheckpointMismatchError
from sklearn_sharpbalance.persistence.fingerprint import (
    code_name,
    describe,
    stable_hash,
)
from tests.cases import rest_slow
from tests.training.killing import call_in_child

rng = np.random.default_rng(0)
y = np.arange(40) % 2
X = (rng.normal(size=(40, 3)) + y[:, None]).astype(np.float32)

CELL = """
{line}
class Module(nn.Module):
    "{text}"
    width = {width}

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.Linear(n_features, self.width)
        self.last = nn.Linear(self.width, n_classes)

    def forward(self, x):
        "{text}"
        return {slope} * self.last({bend}(self.first(x)))

def scores(net, X, y):
    return {sign} * np.arange(len(y))
"""
SAME = dict(line="", slope=1, bend="torch.relu", text="", width=4, sign="+1")


def cell(**changes):
    """Return the names that a cell of a notebook defines."""
    names = {"__name__": "__main__", "nn": nn, "torch": torch, "np": np}
    exec(CELL.format(**SAME | changes), names)
    return names


@pytest.mark.parametrize(
    "change", [{}, {"line": "\n\n# moved"}, {"text": "another docstring"}]
)
def test_comments_and_docstrings_do_not_change_the_name(change):
    assert code_name(cell()["Module"]) == code_name(cell(**change)["Module"])


@pytest.mark.parametrize("change", [{"slope": 2}, {"bend": "torch.sin"}, {"width": 5}])
def test_edited_code_changes_the_name(change):
    assert code_name(cell()["Module"]) != code_name(cell(**change)["Module"])


def test_memory_distinguishes_enclosing_variables():
    def scores_by(sign):
        return lambda net, X, y: sign * len(y)

    assert stable_hash(scores_by(1)) == stable_hash(scores_by(1))
    assert stable_hash(scores_by([1])) != stable_hash(scores_by([2]))


@pytest.mark.parametrize("change", rest_slow([{"bend": "torch.sin"}, {"sign": "-1"}]))
def test_memory_trains_edited_code_again(change, tmp_path):
    def fit(scope, **settings):
        return SharpBalanceEnsembleClassifier(
            scope["Module"],
            sharpness=scope["scores"],
            n_estimators=2,
            max_epochs=2,
            random_state=0,
            **settings,
        ).fit(X, y)

    before, after = cell(), cell(**change)
    fit(before, memory=str(tmp_path))
    kept, fresh = fit(after, memory=str(tmp_path)), fit(after)
    np.testing.assert_array_equal(kept.sam_masks_, fresh.sam_masks_)
    np.testing.assert_array_equal(kept.predict_proba(X), fresh.predict_proba(X))


def test_a_checkpoint_refuses_edited_code(tmp_path):
    def fit(scope):
        return DeepEnsembleClassifier(
            scope["Module"], max_epochs=1, checkpoint_dir=str(tmp_path), random_state=0
        ).fit(X, y)

    fit(cell())
    fit(cell(text="another docstring"))
    with pytest.raises(CheckpointMismatchError, match=r"estimator was __main__.Module"):
        fit(cell(bend="torch.sin"))


def test_a_dataset_is_described_by_its_content():
    def dataset(shift=0.0):
        return TensorDataset(torch.from_numpy(X) + shift, torch.from_numpy(y))

    assert describe(dataset()) == describe(dataset())
    for wrap in (
        lambda data: data,
        lambda data: Subset(data, range(20)),
        lambda data: ConcatDataset([data, data]),
    ):
        assert describe(wrap(dataset())) != describe(wrap(dataset(1)))
    parts = [Subset(dataset(), range(start, start + 5)) for start in (0, 5)]
    assert describe(parts[0]) != describe(parts[1])


class Held(Dataset):
    """A user's own Dataset."""

    def __init__(self, x, transform=None):
        self.x, self.transform = x, transform
        self._opened = {}  # filled by reading

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self._opened[i] = True
        return torch.from_numpy(X[i]), int(y[i])


class Times:
    def __init__(self, factor):
        self._factor = factor

    def __call__(self, x):
        return x * self._factor


def test_a_users_dataset_is_described_by_its_attributes():
    read = Held(X, Times(1))
    read[3]
    assert describe(read) == describe(Held(X, Times(1)))
    others = [Held(5 - X, Times(1)), Held(X, Times(2)), Held(X.tolist(), Times(1))]
    others.append(Held(pd.DataFrame(X), Times(1)))
    others.append(Held(pd.DataFrame(X + 1), Times(1)))
    others.append(Held(pd.DataFrame(X, columns=list("abc")), Times(1)))
    texts = {describe(dataset) for dataset in (read, *others)}
    assert len(texts) == 1 + len(others)


WITH_SET = "def f(x): return x in {'a', 'b', 'c', 'd', 'e'} or [y for y in x]"


def names_of_a_cell():
    here = cell(line=WITH_SET)
    return " ".join(code_name(here[name]) for name in ("Module", "f"))


def names_to_file(path):
    path.write_text(names_of_a_cell())


def test_names_are_the_same_in_another_process(tmp_path):
    """Sets of text have another order there."""
    call_in_child(names_to_file, tmp_path / "names")
    names = names_of_a_cell()
    assert (tmp_path / "names").read_text() == names
    assert all(name.endswith("]") for name in names.split())


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "project"])
def test_installed_packages_count_by_their_names(folder, tmp_path, monkeypatch):
    package = tmp_path / folder / f"helpers_of_{folder.replace('-', '_')}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(package.parent)
    module = importlib.import_module(package.name)
    is_bare = code_name(module.double) == f"{package.name}.double"
    assert is_bare == (folder != "project")


def test_a_decorator_changes_the_name():
    source = """
import functools
def times(factor):
    def decorate(f):
        @functools.wraps(f)
        def wrapped(x):
            return {} * f(x)
        return wrapped
    return decorate
@times({})
def f(x):
    return x
"""
    names = set()
    for change in (("factor", 1), ("factor", 2), ("-factor", 1)):
        scope = {"__name__": "__main__"}
        exec(source.format(*change), scope)
        names.add(code_name(scope["f"]))
    assert len(names) == 3


class Scaled(nn.Module):
    def __init__(self, factor, buffer=1.0):
        super().__init__()
        self.factor = factor
        self.register_buffer("kept", torch.tensor(buffer), persistent=False)

    def forward(self, x):
        return x * self.factor


def hooked(factor):
    module = nn.Linear(2, 2)
    nn.init.ones_(module.weight)
    nn.init.ones_(module.bias)
    module.handle = module.register_forward_hook(lambda *a, k=factor: k * a[-1])
    return module


def lazy(factor):
    return nn.Sequential(nn.LazyLinear(3), Scaled(factor))


def edited(factor):
    scope = {"nn": nn, "__name__": "__main__"}
    exec(f"class Act(nn.Module):\n  def forward(s, x): return x * {factor}", scope)
    return nn.Sequential(scope["Act"]())


def referring(factor):
    module = Scaled(1)
    module.unregistered = [module, Scaled(factor)]
    return module


@pytest.mark.parametrize(
    "make",
    [
        Scaled,
        lambda factor: nn.Sequential(nn.ReLU(), Scaled(factor)),
        lambda factor: Scaled(1, buffer=float(factor)),
        hooked,
        lazy,
        edited,
        referring,
    ],
)
def test_modules_are_described_by_code_attributes_and_hooks(make):
    texts = [describe(make(factor)) for factor in (1, 1, 3)]
    assert texts[0] == texts[1] != texts[2]


class Private:
    def __init__(self, value):
        self._value = value


class Public:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "value",
    [
        lambda x: Private(x),
        lambda x: Private(torch.tensor([x])),
        lambda x: Private(Times(x)),
        lambda x: Private(TensorDataset(torch.full((2, 1), x))),
        lambda x: Private(functools.partial(max, x)),
        lambda x: Private(pd.Series([x])),
        lambda x: Public([(torch.tensor(x), 1), None]),
        lambda x: Public({"a": {"b": x}}),
        lambda x: Public([Image.fromarray(np.full((2, 2), x, np.uint8))]),
    ],
)
def test_objects_are_described_by_their_content(value):
    texts = [describe(value(x)) for x in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_other_private_attributes_are_not_described(tmp_path):
    class Reader:
        def __init__(self):
            self._file, self._cache, self._by_number = None, [None, None], {}
            self._rng = np.random.default_rng(0)

    used, fresh = Reader(), Reader()
    with open(tmp_path / "file", "w") as used._file:
        used._cache[0], used._by_number[3] = 1, 2
        used._rng.normal()
        assert describe(used) == describe(fresh)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("kind", [Private, Slotted, np.random.RandomState])
def test_a_cache_distinguishes_every_content(kind):
    """A result must not be taken for that of another value."""
    hashes = [stable_hash([kind(value)]) for value in ([1], [1], [2])]
    assert hashes[0] == hashes[1] != hashes[2]
