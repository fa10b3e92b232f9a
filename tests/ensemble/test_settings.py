"""Documented names, and the attribute ``settings_``."""

import inspect
import re
from functools import partial

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.aggregation import AGGREGATIONS
from sklearn_sharpbalance.members.schedules import LR_SCHEDULES
from sklearn_sharpbalance.optim import OPTIMIZERS, SAM, LookSAM
from sklearn_sharpbalance.selection import SUBSET_SELECTORS
from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS
from tests.cases import KINDS

REGISTRIES = {
    "aggregation": AGGREGATIONS,
    "lr_schedule": LR_SCHEDULES,
    "sam": OPTIMIZERS,
    "selection": SUBSET_SELECTORS,
    "sharpness": SHARPNESS_SCORERS,
}
SMALL = {"n_estimators": 2, "max_epochs": 2, "device": "cpu", "random_state": 0}
X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
y = np.arange(30) % 3


def description(kind, parameter):
    """Return what the docstring says of a parameter."""
    text = inspect.getdoc(kind)
    found = re.search(rf"^{parameter} : .*\n(?:[ ]+.*\n)+", text, flags=re.M)
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parameter", REGISTRIES)
def test_docstrings_list_every_registered_name(kind, parameter):
    if parameter not in kind().get_params():
        pytest.skip("not a parameter of this ensemble")
    text = description(kind, parameter)
    if parameter == "lr_schedule" and kind is DiversifiedEnsembleClassifier:
        text = text.partition("\n")[0]
    missing = [name for name in REGISTRIES[parameter] if f'"{name}"' not in text]
    assert not missing


@pytest.mark.parametrize("kind", KINDS)
def test_settings_contain_defaults(kind):
    clf = kind(**SMALL).fit(X, y)
    is_flat = kind is SharpBalanceEnsembleClassifier
    step = {"sam": "momentum_sam", "rho": 0.1} if is_flat else {}
    assert clf.settings_ == step | {
        "lr": 0.003,
        "lr_schedule": "cosine",
        "max_epochs": 2,
        "batch_size": 128,
        "optimizer": "AdamW",
        "weight_decay": 0.01 if kind is DiversifiedEnsembleClassifier else 3.0,
        "device": "cpu",
        "precision": "float32",
        "train_transform": "None",
        "threads": 1,  # for small networks, with any setting of torch
    }


def test_large_networks_use_the_threads_of_torch():
    clf = DeepEnsembleClassifier(**SMALL, estimator__module__hidden=(512, 512))
    clf.fit(X, y)
    assert clf.engine_.threads is None
    assert clf.settings_["threads"] == torch.get_num_threads()


def triangle(progress):
    return 1 - progress


def same_batch(x):
    return x


@pytest.mark.parametrize(
    ("params", "settings"),
    [
        ({"lr": 0.02}, {"lr": 0.02}),
        ({"estimator__optimizer__lr": 0.3}, {"lr": 0.3}),
        ({"lr_schedule": "one_cycle"}, {"lr_schedule": "one_cycle"}),
        ({"lr_schedule": triangle}, {"lr_schedule": "triangle"}),
        ({"lr_schedule": partial(triangle)}, {"lr_schedule": "partial"}),
        (
            {"lr_schedule": LRScheduler("StepLR", step_size=1)},
            {"lr_schedule": "LRScheduler"},
        ),
        ({"batch_size": 7, "max_epochs": 3}, {"batch_size": 7, "max_epochs": 3}),
        ({"optimizer": torch.optim.Adam}, {"optimizer": "Adam", "weight_decay": 0.0}),
        (
            {"optimizer": partial(torch.optim.SGD, weight_decay=0.25)},
            {"optimizer": "SGD", "weight_decay": 0.25},
        ),
        ({"estimator__optimizer__weight_decay": 0.5}, {"weight_decay": 0.5}),
        ({"precision": "bf16"}, {"precision": "bf16"}),
        ({"device": ["cpu", "cpu"]}, {"device": "cpu, cpu"}),
        ({"train_transform": same_batch}, {"train_transform": "same_batch"}),
        ({"train_transform": nn.Identity()}, {"train_transform": "Identity"}),
    ],
)
def test_settings_contain_given_parameters(params, settings):
    clf = DeepEnsembleClassifier(**{**SMALL, **params}).fit(X, y)
    assert settings.items() <= clf.settings_.items()


class OwnStep(SAM):
    """A step of the user."""


@pytest.mark.parametrize(
    ("sam", "name"), [("gsam", "gsam"), (LookSAM, "look_sam"), (OwnStep, "OwnStep")]
)
def test_settings_contain_the_step(sam, name):
    clf = SharpBalanceEnsembleClassifier(**SMALL, sam=sam).fit(X, y)
    assert clf.settings_["sam"] == name


def test_settings_of_a_configured_net():
    net = NeuralNetClassifier(
        MLP, criterion=nn.CrossEntropyLoss, lr=0.05, batch_size=9, max_epochs=3
    )
    params = {**SMALL, "max_epochs": None}
    settings = DeepEnsembleClassifier(net, **params).fit(X, y).settings_
    expected = {"lr": 0.05, "batch_size": 9, "max_epochs": 3, "lr_schedule": "constant"}
    assert expected.items() <= settings.items()


def test_partial_fit_has_a_constant_learning_rate():
    clf = DeepEnsembleClassifier(**SMALL).partial_fit(X, y)
    assert clf.settings_["lr_schedule"] == "constant"
