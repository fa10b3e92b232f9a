"""Invalid settings raise before training and do not change a fitted ensemble."""

import copy
import re
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from skorch.callbacks import EpochTimer
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.exceptions import CheckpointError, InvalidInputError
from tests.cases import rest_slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
Y = np.arange(30) % 3
BOTH = [SharpBalanceEnsembleClassifier, DiversifiedEnsembleClassifier]
STEPS = []


class Counting(nn.Module):
    """Record every backward pass."""

    def __init__(self, n_features=4, n_classes=3):
        super().__init__()
        self.last = nn.Linear(n_features, n_classes)

    def forward(self, x):
        output = self.last(x)
        if self.training:  # checks before training make no backward pass
            output.register_hook(lambda gradient: STEPS.append(len(gradient)))
        return output


def make(kind=SharpBalanceEnsembleClassifier, **params):
    few = {"n_estimators": 2, "max_epochs": 2, "batch_size": 16, "device": "cpu"}
    return kind(Counting, random_state=0, **{**few, **params})


@cache
def fitted_ensemble(kind):
    return make(kind).fit(X, Y)


def check_refused(
    kind, params, message, X=X, y=Y, error=InvalidInputError, **fit_params
):
    """Check that a new and a fitted ensemble raise before training."""
    fitted = copy.deepcopy(fitted_ensemble(kind))
    before = fitted.predict_proba(globals()["X"])
    new = make(kind, **params)
    for clf in (new, fitted.set_params(**params)):
        STEPS.clear()
        with pytest.raises(error, match=message) as caught:
            clf.fit(X, y, **fit_params)
        assert type(caught.value) is error
        assert not STEPS
    assert not hasattr(new, "classes_")
    np.testing.assert_array_equal(fitted.predict_proba(globals()["X"]), before)


# Settings that both kinds refuse ------------------------------------------------------


OPTIMIZER = torch.optim.AdamW([torch.zeros(1)])
TRUE = ["n_estimators", "max_epochs", "batch_size", "lr"]
REFUSED = {
    **{f"{name} is True": ({name: True}, name) for name in TRUE},
    "callback": ({"callbacks": [EpochTimer(), 3]}, "callbacks[1]"),
    "callback pair": ({"callbacks": [EpochTimer(), ("a", 3)]}, "callbacks[1]"),
    "checkpoint_dir": ({"checkpoint_dir": " "}, "checkpoint_dir"),
    "field of checkpoint_dir": ({"checkpoint_dir": "x/{foo}"}, "{foo}"),
    "workers": ({"estimator__iterator_train__num_workers": -1}, "num_workers"),
    "class weight nan": ({"class_weight": {0: 1.0, 1: np.nan}}, "class 1"),
    "class weight negative": ({"class_weight": {0: 1.0, 1: -1.0}}, "class 1"),
    "class weight text": ({"class_weight": {0: 1.0, 1: "2"}}, "class 1"),
    "class weights zero": ({"class_weight": dict.fromkeys(range(3), 0)}, "zeros"),
    "class weights huge": ({"class_weight": dict.fromkeys(range(3), 1e308)}, "large"),
    "aggregation takes two": ({"aggregation": lambda a, b: a}, "(a, b)"),
    "aggregation raises": ({"aggregation": lambda x: x.softmax(-1)}, "AttributeError"),
    "aggregation shape": ({"aggregation": lambda x: x}, "(2, 5, 3)"),
    "aggregation logits": ({"aggregation": lambda x: x.mean(0)}, "probabilities"),
    "optimizer object": ({"optimizer": OPTIMIZER}, "torch.optim.AdamW"),
    "optimizer name": ({"estimator__optimizer": "adam"}, "got 'adam'"),
    "schedule negative": ({"lr_schedule": lambda p: -1}, "-1"),
    "schedule nan": ({"lr_schedule": lambda p: np.nan}, "nan"),
    "schedule late": ({"lr_schedule": lambda p: 1 - 1.4 * p}, "0.75"),
    "schedule none": ({"lr_schedule": lambda p: None}, "lr_schedule"),
    "schedule of two": ({"lr_schedule": lambda p, q: 1.0}, "missing 1 required"),
    "transform none": ({"train_transform": lambda x: None}, "NoneType"),
    "transform array": ({"train_transform": lambda x: x.numpy()}, "ndarray"),
    "transform fewer": ({"train_transform": lambda x: x[:-1]}, "(14, 4)"),
    "transform scalar": ({"train_transform": lambda x: x.sum()}, "()"),
}
ONLY_PHASED = {
    "flat_ratio is True": ({"flat_ratio": True}, "flat_ratio"),
    "warmup_epochs is True": ({"warmup_epochs": True}, "warmup_epochs"),
    "memory": ({"memory": ""}, "memory"),
    "nested ratio": (
        {"selection": "sharpest", "selection__flat_ratio": 2},
        "flat_ratio",
    ),
    "selection takes one": ({"selection": lambda sharpness: sharpness}, "(sharpness)"),
    "sharpness takes two": ({"sharpness": lambda net, X: X}, "(net, X)"),
    "the last of 30,000 steps": (
        {
            "max_epochs": 1000,
            "batch_size": 1,
            "lr_schedule": lambda p: -1 if p >= 29_999 / 30_000 else 1,
        },
        "0.99996",
    ),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", REFUSED)
def test_settings_are_refused_before_training(kind, case):
    params, message = REFUSED[case]
    check_refused(kind, params, re.escape(message))


@pytest.mark.parametrize("case", ONLY_PHASED)
def test_settings_of_phases_are_refused_before_training(case):
    params, message = ONLY_PHASED[case]
    check_refused(BOTH[0], params, re.escape(message))


@pytest.mark.parametrize("kind", BOTH)
def test_folders_that_are_files_are_refused(kind, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    check_refused(kind, {"checkpoint_dir": file}, "file", error=CheckpointError)
    if kind is BOTH[0]:
        check_refused(kind, {"memory": str(file)}, "memory")


@pytest.mark.parametrize(
    ("kind", "names"),
    rest_slow(
        product([*BOTH, DeepEnsembleClassifier], ["xyz", "abd", "abcd"]),
        [(BOTH[0], "abcd"), (BOTH[1], "xyz")],
    ),
)
def test_warm_start_with_other_classes_raises(kind, names):
    clf = make(kind, warm_start=True).fit(X, np.array(list("abc"))[Y])
    before = clf.predict_proba(X)
    STEPS.clear()
    other = np.array(list(names))[np.arange(30) % len(names)]
    with pytest.raises(InvalidInputError, match="warm_start"):
        clf.fit(X, other)
    assert not STEPS
    np.testing.assert_array_equal(clf.predict_proba(X), before)
    clf.fit(X[::-1], np.array(list("cab"))[Y])  # the same classes in another order
    clf.set_params(warm_start=False).fit(X, other)
    assert clf.classes_.tolist() == list(names)


# Settings that are accepted -----------------------------------------------------------


def test_class_weights_may_be_zero():
    clf = make(class_weight={0: 0, 1: np.float32(2), 2: 3}).fit(X, Y)
    assert clf.predict_proba(X).shape == (30, 3)


def test_an_aggregation_function_may_return_a_tensor():
    weight = torch.ones(2, 1, 1, requires_grad=True)

    def mean(logits):
        return (weight * torch.as_tensor(logits).softmax(-1)).mean(0)

    clf = make(aggregation=mean).fit(X, Y)
    expected = clf.member_predict_proba(X).mean(axis=0)
    np.testing.assert_allclose(clf.predict_proba(X), expected, rtol=1e-6)


def test_transforms_of_dictionaries_keep_their_keys():
    x = {"a": torch.zeros(3, 2), "b": torch.zeros(3)}
    kept = EpochAugment(lambda x: {k: v + 1 for k, v in x.items()}, (1, 3), "cpu")
    assert kept.batch(0, x)["b"].tolist() == [1, 1, 1]
    for bad in (lambda x: x["a"], lambda x: {"a": x["a"]}, lambda x: {**x, "b": None}):
        with pytest.raises(InvalidInputError, match=r"\['a', 'b'\]"):
            EpochAugment(bad, (1, 3), "cpu").batch(0, x)


# Types that numpy does not have -------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_bfloat16_and_float8_are_converted_to_float32(dtype):
    short = torch.from_numpy(X).to(dtype)
    want = make().fit(short.float(), Y).predict_proba(short.float())
    weight = torch.ones(30).to(dtype)
    clf = make().fit(short, torch.from_numpy(Y), sample_weight=weight)
    np.testing.assert_allclose(clf.predict_proba(short), want, rtol=1e-5)


@pytest.mark.parametrize("kind", BOTH)
def test_bfloat16_in_a_dataset(kind):
    short = torch.from_numpy(X).to(torch.bfloat16)
    want = make(kind).fit(short.float(), Y).predict_proba(short.float())
    pairs = TensorDataset(short, torch.from_numpy(Y))
    clf = make(kind).fit(pairs, None)
    np.testing.assert_allclose(clf.predict_proba(pairs), want, rtol=1e-4)
    tiny = TensorDataset(short.to(torch.float8_e4m3fn), torch.from_numpy(Y))
    check_refused(
        kind, {}, "compute with, got torch.float8_e4m3fn. Convert", X=tiny, y=None
    )
