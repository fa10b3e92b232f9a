"""Kept work is not found again for code that was edited meanwhile."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.ensemble.code_names import code_name
from sklearn_sharpbalance.ensemble.fingerprint import describe_samples
from sklearn_sharpbalance.exceptions import CheckpointMismatchError

rng = np.random.default_rng(0)
y = np.arange(40) % 2
X = (rng.normal(size=(40, 3)) + y[:, None]).astype(np.float32)

CELL = """
{line}
SLOPE = {slope}

def bend(x):
    return {bend}(x)

class Module(nn.Module):
    "{text}"
    width = {width}

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.Linear(n_features, self.width)
        self.last = nn.Linear(self.width, n_classes)

    def forward(self, x):
        "{text}"
        return SLOPE * self.last(bend(self.first(x)))

def scores(net, X, y):
    return {sign} * np.arange(len(y))
"""
SAME = dict(line="", slope=1, bend="torch.relu", text="", width=4, sign="+1")


def cell(**changes):
    """What a cell of a notebook defines."""
    names = {"__name__": "__main__", "nn": nn, "torch": torch, "np": np}
    exec(CELL.format(**SAME | changes), names)
    return names


@pytest.mark.parametrize(
    "change", [{}, {"line": "\n\n# moved"}, {"text": "told otherwise"}]
)
def test_code_that_says_the_same_has_the_same_name(change):
    assert code_name(cell()["Module"]) == code_name(cell(**change)["Module"])


@pytest.mark.parametrize("change", [{"slope": 2}, {"bend": "torch.sin"}, {"width": 5}])
def test_code_that_says_something_else_has_another(change):
    assert code_name(cell()["Module"]) != code_name(cell(**change)["Module"])


def test_what_a_base_class_says_matters():
    names = set()
    for change in ({}, {"slope": 3}):
        scope = cell(**change)
        exec("class Derived(Module): pass", scope)
        names.add(code_name(scope["Derived"]))
    assert len(names) == 2


def test_variables_around_a_function_matter_to_kept_work(tmp_path):
    def scores_by(sign):
        return lambda net, X, y: sign * np.arange(float(len(y)))

    masks = [
        SharpBalanceEnsembleClassifier(
            sharpness=scores_by(sign), max_epochs=2, memory=str(tmp_path)
        )
        .fit(X, y)
        .sam_masks_
        for sign in (1, -1)
    ]
    assert not np.array_equal(*masks)


@pytest.mark.parametrize("change", [{"bend": "torch.sin"}, {"sign": "-1"}])
def test_memory_trains_edited_code(change, tmp_path):
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
    fit(cell(text="told otherwise"))
    with pytest.raises(CheckpointMismatchError, match=r"estimator was __main__.Module"):
        fit(cell(bend="torch.sin"))


def test_a_dataset_goes_by_what_it_holds():
    def dataset(shift=0.0):
        return TensorDataset(torch.from_numpy(X) + shift, torch.from_numpy(y))

    assert describe_samples(dataset()) == describe_samples(dataset())
    for wrap in (
        lambda data: data,
        lambda data: Subset(data, range(20)),
        lambda data: ConcatDataset([data, data]),
    ):
        assert describe_samples(wrap(dataset())) != describe_samples(wrap(dataset(1)))
    parts = [Subset(dataset(), range(start, start + 5)) for start in (0, 5)]
    assert describe_samples(parts[0]) != describe_samples(parts[1])


class Held(Dataset):
    """The usual Dataset of one's own."""

    def __init__(self, x, transform=None):
        self.x, self.transform = x, transform
        self._opened = {}  # fills up as it is read

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


def test_a_dataset_of_ones_own_goes_by_what_it_holds():
    read = Held(X, Times(1))
    read[3]
    assert describe_samples(read) == describe_samples(Held(X, Times(1)))
    others = [Held(5 - X, Times(1)), Held(X, Times(2)), Held(X.tolist(), Times(1))]
    others.append(Held(pd.DataFrame(X), Times(1)))
    others.append(Held(pd.DataFrame(X + 1), Times(1)))
    others.append(Held(pd.DataFrame(X, columns=list("abc")), Times(1)))
    texts = {describe_samples(dataset) for dataset in (read, *others)}
    assert len(texts) == 1 + len(others)


def test_a_checkpoint_refuses_a_dataset_with_other_samples(tmp_path):
    def fit(dataset):
        return DeepEnsembleClassifier(
            max_epochs=1, checkpoint_dir=str(tmp_path), random_state=0
        ).fit(dataset)

    fit(Held(X))
    fit(Held(X))
    with pytest.raises(CheckpointMismatchError, match="X was"):
        fit(Held(5 - X))


@pytest.mark.parametrize("use", ["[f(b) for b in x]", "(lambda b: f(b))(x)"])
def test_functions_that_inner_code_refers_to_matter(use):
    names = set()
    for sign in "+-":
        scope = {"__name__": "__main__"}
        exec(f"def f(b): return {sign}b\ndef g(x): return {use}", scope)
        names.add(code_name(scope["g"]))
    assert len(names) == 2
