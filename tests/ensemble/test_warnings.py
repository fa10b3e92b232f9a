"""Warnings about settings without effect and ambiguous shapes."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from tests.cases import KINDS

SMALL = {"n_estimators": 2, "max_epochs": 1, "device": "cpu", "random_state": 0}
y = np.arange(30) % 3
PICTURES = np.random.default_rng(0).normal(size=(30, 8, 8)).astype(np.float32)
TABLE = PICTURES[:, 0]


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharpBalanceWarning)
        yield


def flat(X):
    return X.reshape(len(X), -1)


OWN = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
ITEMS = TensorDataset(torch.as_tensor(PICTURES), torch.as_tensor(y))
WARNS = [
    ({}, PICTURES, "channel axis"),
    ({}, ITEMS, "channel axis"),
    ({"precision": "fp16"}, TABLE, "fp16"),
]
QUIET = [
    ({}, PICTURES[:, None]),
    ({}, flat(PICTURES)),
    ({"estimator": OWN}, PICTURES),
    ({}, np.uint8(PICTURES > 0)),
    ({}, PICTURES[:, :3]),  # short sequences
]


@pytest.mark.parametrize(("params", "X", "name"), WARNS)
@pytest.mark.parametrize("kind", KINDS)
def test_settings_without_effect_and_ambiguous_shapes_warn(kind, params, X, name):
    if not params.keys() <= kind().get_params().keys():
        pytest.skip("not a parameter of this ensemble")
    with pytest.warns(SharpBalanceWarning, match=name):
        kind(**SMALL | params).fit(X, None if X is ITEMS else y)


@pytest.mark.parametrize(("params", "X"), QUIET)
def test_other_settings_do_not_warn(params, X, no_warnings):
    DeepEnsembleClassifier(**SMALL | params).fit(X, y)
