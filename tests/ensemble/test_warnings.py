"""Warnings about settings without effect and ambiguous shapes."""

import warnings

import joblib
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    SmallResNet,
)
from sklearn_sharpbalance.exceptions import SharpBalanceWarning

KINDS = [
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
]
SMALL = {"n_estimators": 2, "max_epochs": 1, "device": "cpu", "random_state": 0}
y = np.arange(30) % 3
PICTURES = np.random.default_rng(0).normal(size=(30, 8, 8)).astype(np.float32)
TABLE = PICTURES[:, 0]


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharpBalanceWarning)
        yield


# Float arrays (N, H, W) ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_float_pictures_without_a_channel_axis_warn(kind):
    with pytest.warns(SharpBalanceWarning, match=r"\(8, 8\) .*pass X\[:, None\]"):
        kind(**SMALL).fit(PICTURES, y)


def test_dataset_of_float_pictures_without_a_channel_axis_warns():
    items = TensorDataset(torch.as_tensor(PICTURES), torch.as_tensor(y))
    with pytest.warns(SharpBalanceWarning, match=r"\(8, 8\) have no channel axis"):
        DeepEnsembleClassifier(**SMALL).fit(items)


def test_suggestions_of_the_warning_do_not_warn(no_warnings):
    clf = DeepEnsembleClassifier(**SMALL).fit(PICTURES[:, None], y)
    assert isinstance(clf.estimators_[0].module_.module, SmallResNet)
    clf.fit(PICTURES.reshape(30, -1), y)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    DeepEnsembleClassifier(own, **SMALL).fit(PICTURES, y)


def test_uint8_pictures_and_short_sequences_do_not_warn(no_warnings):
    clf = DeepEnsembleClassifier(**SMALL)
    clf.fit(np.uint8(PICTURES > 0), y)
    clf.fit(PICTURES[:, :3], y)


# Checkpoints --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_every_without_checkpoint_dir_warns(kind):
    with pytest.warns(SharpBalanceWarning, match="without checkpoint_dir. Pass the"):
        kind(checkpoint_every=1, **SMALL).fit(TABLE, y)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_every_with_checkpoint_dir_does_not_warn(
    kind, tmp_path, no_warnings
):
    kind(checkpoint_every=1, checkpoint_dir=tmp_path, **SMALL).fit(TABLE, y)


# Jobs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [2, -1])
def test_n_jobs_with_stacked_members_warns(n_jobs):
    clf = DeepEnsembleClassifier(n_jobs=n_jobs, **SMALL)
    message = f"n_jobs={n_jobs} has no effect with engine='stacked'.* engine='skorch'"
    with pytest.warns(SharpBalanceWarning, match=message):
        clf.fit(TABLE, y)


def test_n_jobs_with_several_devices_warns():
    clf = DeepEnsembleClassifier(n_jobs=2, engine="skorch", **SMALL)
    clf.set_params(device=["cpu", "cpu"])
    with pytest.warns(SharpBalanceWarning, match="no effect with a list of devices"):
        clf.fit(TABLE, y)


@pytest.mark.parametrize("params", [{"n_jobs": 1}, {"n_jobs": 2, "engine": "skorch"}])
def test_n_jobs_with_effect_does_not_warn(params, no_warnings):
    with joblib.parallel_config(backend="threading"):  # starts faster than processes
        DeepEnsembleClassifier(**params, **SMALL).fit(TABLE, y)
