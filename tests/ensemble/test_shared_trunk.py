"""Heads on a shared trunk: the same as an ensemble that is fitted on features."""

import copy
import gc
import pickle
import tempfile
from pathlib import Path
from unittest import mock
from urllib.error import URLError

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn
from torchvision import models

import sklearn_sharpbalance
from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import shared_trunk
from sklearn_sharpbalance.model_selection import EnsembleSearchCV
from tests.cases import rest_slow

PHASED = [SharpBalanceEnsembleClassifier, DeepEnsembleClassifier]
KINDS = [*PHASED, DiversifiedEnsembleClassifier]
FEW = {"n_estimators": 2, "max_epochs": 4, "random_state": 0, "device": "cpu"}
N = 300
DIGITS, LABELS = (each[:N] for each in load_digits(return_X_y=True))
IMAGES = (15 * DIGITS).astype(np.uint8).reshape(-1, 8, 8)


class Bytes(nn.Module):
    def forward(self, x):
        return x / 255


class Trunk(nn.Module):
    """A small convolutional trunk."""

    def __init__(self):
        super().__init__()
        layers = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()
        self.layers = nn.Sequential(Bytes(), *layers, nn.Flatten())
        self.linear = nn.Linear(36, 20)

    def forward(self, x):
        return self.linear(self.layers(x)).relu()


class Counting(Trunk):
    """Counts the samples that pass, outside of its state."""

    def forward(self, x):
        SEEN.append(len(x))
        return super().forward(x)


SEEN = []
torch.manual_seed(0)
TRUNK, COUNTING = Trunk(), Counting()
COUNTING.load_state_dict(TRUNK.state_dict())
with torch.no_grad():
    FEATURES = copy.deepcopy(TRUNK).eval()(torch.tensor(IMAGES[:, None])).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_heads_equal_an_ensemble_on_features(kind):
    params = FEW | {"validation_fraction": 0.2, "class_weight": "balanced"}
    if kind in PHASED:
        params |= {"early_stopping": True, "weight_averaging": "uniform", "prune": 0.3}
    weight = np.linspace(1, 2, N)
    SEEN.clear()
    whole = kind(shared_trunk=COUNTING, **params).fit(IMAGES, LABELS, weight)
    assert sum(SEEN) == N
    heads = kind(**params).fit(FEATURES, LABELS, weight)
    assert whole.engine_.name == "stacked"
    assert whole.settings_ == heads.settings_
    for method in ("predict_proba", "member_predict_proba", "predict_set"):
        SEEN.clear()
        got, want = getattr(whole, method)(IMAGES), getattr(heads, method)(FEATURES)
        np.testing.assert_allclose(got, want, atol=1e-6)
        assert sum(SEEN) == N
    for name in ("sharpness_", "sam_masks_", "train_indices_", "validation_scores_"):
        got, want = (getattr(each, name, None) for each in (whole, heads))
        np.testing.assert_allclose(np.float64(got), np.float64(want))


@pytest.mark.parametrize(
    ("kind", "trunk"),
    rest_slow([*zip(PHASED, (TRUNK, Trunk)), *zip(PHASED, (Trunk, TRUNK))], keep=2),
)
def test_partial_fit_and_warm_start_continue_on_the_trunk(kind, trunk):
    clf = kind(shared_trunk=trunk, warm_start=True, **FEW).fit(IMAGES, LABELS)
    features = clf.trunk_.features(IMAGES[:, None])
    heads = kind(warm_start=True, **FEW).fit(features, LABELS)
    for call in ("partial_fit", "fit"):
        getattr(clf, call)(IMAGES[::-1], LABELS[::-1])
        getattr(heads, call)(features[::-1], LABELS[::-1])
        got = clf.predict_proba(IMAGES)
        np.testing.assert_allclose(got, heads.predict_proba(features), atol=1e-5)


@pytest.mark.parametrize("other", [None, nn.Flatten(), nn.Flatten])
def test_partial_fit_refuses_another_trunk(other):
    clf = DeepEnsembleClassifier(shared_trunk=TRUNK, **FEW).partial_fit(IMAGES, LABELS)
    clf.set_params(shared_trunk=other)
    with pytest.raises(InvalidInputError, match="shared_trunk"):
        clf.partial_fit(IMAGES, LABELS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_file_has_the_weights_of_the_trunk(kind, tmp_path):
    clf = clone(kind(**FEW).set_params(shared_trunk=TRUNK))
    want = clf.fit(IMAGES, LABELS).predict_proba(IMAGES)
    clf.save(tmp_path / "model")
    again = sklearn_sharpbalance.load(tmp_path / "model", shared_trunk=Trunk)
    for twin in (again, pickle.loads(pickle.dumps(clf)), copy.deepcopy(clf)):
        np.testing.assert_array_equal(twin.predict_proba(IMAGES), want)
        trunks = {id(net.module_.trunk) for net in twin.estimators_}
        assert trunks == {id(twin.trunk_.module)}


@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_a_torch_program_has_the_trunk_once(kind, tmp_path):
    clf = kind(**FEW).set_params(shared_trunk=TRUNK).fit(IMAGES, LABELS)
    want = clf.predict_proba(IMAGES)
    clf.export_torch(tmp_path / "program")
    program = torch.export.load(tmp_path / "program")
    got = program.module()(torch.tensor(IMAGES)).detach()
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert sum("conv" in str(node.target) for node in program.graph.nodes) == 1


def test_a_torchvision_model_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    X, y = np.random.default_rng(0).integers(256, size=(40, 32, 32, 3)), np.arange(40)
    X, y = X.astype(np.uint8), y % 2
    clf = DeepEnsembleClassifier(shared_trunk="squeezenet1_1", **FEW)
    refuse = mock.Mock(side_effect=URLError("no route"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    with pytest.raises(InvalidInputError, match="cannot be read or downloaded"):
        clf.fit(X, y)
    source = models.squeezenet1_1().eval()
    weights = models.SqueezeNet1_1_Weights.DEFAULT
    file = tmp_path / "checkpoints" / weights.url.rpartition("/")[2]
    torch.save(source.state_dict(), file)
    clf.fit(X, y)
    source.classifier[1] = nn.Identity()
    prepare = weights.transforms(crop_size=32, resize_size=32)
    want = source(prepare(torch.tensor(X).movedim(-1, 1))).detach()
    got = clf.trunk_.features(np.moveaxis(X, -1, 1))
    np.testing.assert_allclose(got, want, atol=1e-4)
    clf.save(tmp_path / "model")
    file.unlink()  # the weights are in the model file
    again = sklearn_sharpbalance.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("trunk", "message"),
    [
        (nn.Linear(5, 2), "The shared trunk Linear failed on X"),
        (3, "shared_trunk must be None, an nn.Module, a function"),
        (lambda: "trunk", "shared_trunk must be None, an nn.Module, a function"),
        ("resnet", "Unknown torchvision classification model 'resnet'"),
        (Returns(lambda x: (x, x)), "Returns returned tuple for"),
        (Returns(lambda x: x.sum((1, 2, 3))), r"returned \(\d+,\) for"),
        (nn.Flatten(0), r"Flatten returned \(\d+,\) for"),
        (Returns(lambda x: x.flatten(1).log()), "values that are not finite"),
    ],
)
def test_invalid_trunks_raise_before_the_training(kind, trunk, message):
    with pytest.raises(InvalidInputError, match=message):
        kind(shared_trunk=trunk, **FEW).fit(IMAGES, LABELS)


@pytest.mark.parametrize("kind", PHASED)
def test_augmentation_before_a_trunk_that_runs_once_raises(kind):
    clf = kind(shared_trunk=TRUNK, train_transform="crop_flip", **FEW)
    with pytest.raises(InvalidInputError, match="features are computed once"):
        clf.fit(IMAGES, LABELS)


def test_many_features_are_on_disk(monkeypatch, tmp_path):
    clf = DeepEnsembleClassifier(shared_trunk=TRUNK, **FEW)
    want = clf.fit(IMAGES, LABELS).predict_proba(IMAGES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shared_trunk, "LARGEST_FRACTION", 0)
    features = clf.trunk_.features(IMAGES[:, None])
    assert isinstance(features, np.memmap)
    assert len(list(Path(tmp_path).glob("sharpbalance-*"))) == 1
    np.testing.assert_array_equal(clf.fit(IMAGES, LABELS).predict_proba(IMAGES), want)
    del features
    gc.collect()
    assert not list(Path(tmp_path).glob("sharpbalance-*"))


def test_a_search_over_heads():
    grid = {"estimator__module__hidden": [(4,), (8,)]}
    clf = SharpBalanceEnsembleClassifier(shared_trunk=COUNTING, **FEW)
    plain = GridSearchCV(clf, grid, cv=2, refit=False).fit(IMAGES, LABELS)
    SEEN.clear()
    search = EnsembleSearchCV(clf, grid, cv=2, refit=False).fit(IMAGES, LABELS)
    assert sum(SEEN) == N + 2 * N  # each split, and each candidate's test samples
    got, want = (each.cv_results_["mean_test_score"] for each in (search, plain))
    np.testing.assert_allclose(got, want)


def test_the_last_block_can_be_trained_on_the_features_before_it():
    """Each member trains a copy of the pretrained block, and a head of its own."""
    frozen, block = TRUNK.layers, TRUNK.linear

    def block_and_head(n_classes):
        head = nn.Linear(20, n_classes)
        return nn.Sequential(copy.deepcopy(block), nn.ReLU(), head)

    options = {"optimizer": torch.optim.AdamW, "lr": 0.01, "standardize": False}
    clf = SharpBalanceEnsembleClassifier(
        block_and_head, shared_trunk=frozen, **FEW | options | {"max_epochs": 30}
    )
    assert clf.fit(IMAGES, LABELS).score(IMAGES, LABELS) > 0.5
    for net in clf.heads_:
        own, start = net.module_.module[0].weight.flatten(), block.weight.flatten()
        assert 0.3 < nn.functional.cosine_similarity(own, start, dim=0) < 0.999
    assert clf.trunk_.module[1].weight.equal(frozen[1].weight)
