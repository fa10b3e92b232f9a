"""User-defined selectors, scorers and nets are used, or raise before training."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.engine.support import NOT_CALLED
from sklearn_sharpbalance.exceptions import InvalidInputError, OutOfDeviceMemoryError
from sklearn_sharpbalance.selection import SubsetSelector

FEW = {"n_estimators": 2, "max_epochs": 2, "random_state": 0, "device": "cpu"}
rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 4)).astype("f4"), np.arange(40) % 3


# Selectors --------------------------------------------------------------------------


class RandomHalf(SubsetSelector):
    """Select a random half, and convert the masks."""

    needs_sharpness = False

    def __init__(self, convert):
        self.convert = convert

    def select(self, sharpness, *, random_state=None):
        masks = random_state.random_sample(sharpness.shape) > 0.5
        return self.convert(masks)


@pytest.mark.parametrize(
    ("convert", "got"),
    [
        (lambda masks: masks.astype(int), r"int64 of shape \(2, 40\)"),
        (lambda masks: masks * 1.0, r"float64 of shape \(2, 40\)"),
        (lambda masks: masks[0], r"bool of shape \(40,\)"),
        (lambda masks: masks.T, r"bool of shape \(40, 2\)"),
        (lambda masks: None, r"object of shape \(\)"),
    ],
)
def test_masks_of_any_selector_are_checked(convert, got):
    clf = SharpBalance(selection=RandomHalf(convert), **FEW)
    match = rf"RandomHalf.select must return a boolean array .*\(2, 40\).*got {got}"
    with pytest.raises(InvalidInputError, match=match):
        clf.fit(X, y)


class InPlace(SubsetSelector):
    """Change the scores in place."""

    def select(self, sharpness, *, random_state=None):
        sharpness -= np.median(sharpness, axis=1, keepdims=True)
        return sharpness > 0


def test_a_selector_may_work_in_place():
    clf = SharpBalance(selection=InPlace(), **FEW).fit(X, y)
    assert (clf.sharpness_ >= 0).all()
    median = np.median(clf.sharpness_, axis=1, keepdims=True)
    assert np.array_equal(clf.sam_masks_, clf.sharpness_ > median)


# Scorers ----------------------------------------------------------------------------


class WithBatchStatistics(MLP):
    """Samples depend on each other through batch statistics."""

    def __init__(self, n_features, n_classes):
        super().__init__(n_features, n_classes, hidden=(8,))
        self.insert(2, nn.BatchNorm1d(8, track_running_stats=False))


class Recomputed(MLP):
    """Reentrant checkpoints only support ``backward``."""

    def forward(self, x):
        x = self[1](self[0](x))
        for layer in self[2:]:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
        return x


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("module", "sharpness", "match"),
    [
        (WithBatchStatistics, "fisher_trace", "keeps no running statistics"),
        (Recomputed, "loss_rise", "use_reentrant"),
    ],
)
def test_networks_that_cannot_be_scored_raise_before_training(
    module, sharpness, match, method
):
    """They only raise if scores are needed."""
    epochs = []

    class Count(Callback):
        def on_epoch_end(self, net, **kwargs):
            epochs.append(net)

    parts = {"callbacks": [Count()], "engine": "skorch", **FEW}
    clf = SharpBalance(module, sharpness=sharpness, **parts)
    with pytest.raises(Exception, match=match):
        getattr(clf, method)(X, y)
    assert epochs == []
    clf.set_params(selection="all").fit(X, y)
    clf.set_params(selection="sharpest", warmup_epochs=1.0).fit(X, y)
    assert len(epochs) == 2 * 2 * FEW["max_epochs"]


def test_scoring_out_of_memory_raises_with_advice():
    def scorer(net, X, y):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    with pytest.raises(OutOfDeviceMemoryError, match="tried to allocate") as error:
        SharpBalance(sharpness=scorer, **FEW).fit(X, y)
    assert "`sharpness__chunk_size`" in error.value.__notes__[0]


# Nets -------------------------------------------------------------------------------


def net_with(**methods):
    """Return a net whose class overrides these methods."""
    kind = type("Own", (NeuralNetClassifier,), methods)
    return kind(MLP, module__hidden=(8,), criterion=nn.CrossEntropyLoss, lr=0.1)


def never(self, *args, **kwargs):
    raise AssertionError("training was started")


@pytest.mark.parametrize("name", NOT_CALLED)
@pytest.mark.parametrize("kind", [SharpBalance, DiversifiedEnsembleClassifier])
def test_overridden_methods_that_are_not_called_raise(kind, name):
    assert callable(getattr(NeuralNetClassifier, name))
    net = net_with(**{name: never, "initialize": never})
    match = f"Own overrides {name}, which are not called.*Supported are infer, get_loss"
    with pytest.raises(InvalidInputError, match=match):
        kind(net, **FEW).fit(X, y)


def proba(**methods):
    clf = DeepEnsembleClassifier(net_with(**methods), **FEW).fit(X, y)
    return clf.predict_proba(X), clf.engine_


def half_infer(self, x, **params):
    return NeuralNetClassifier.infer(self, x / 2, **params)


def half_loss(self, *args, **kwargs):
    return NeuralNetClassifier.get_loss(self, *args, **kwargs) / 2


def zero_start(self):
    NeuralNetClassifier.initialize_module(self)
    for weight in self.module_.parameters():
        nn.init.zeros_(weight)
    return self


def slow_optimizer(self, *args, **kwargs):
    NeuralNetClassifier.initialize_optimizer(self, *args, **kwargs)
    for group in self.optimizer_.param_groups:
        group["lr"] = 1e-3
    return self


def smooth_criterion(self):
    NeuralNetClassifier.initialize_criterion(self)
    self.criterion_.label_smoothing = 0.5
    return self


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("infer", half_infer),
        ("get_loss", half_loss),
        ("initialize_module", zero_start),
        ("initialize_optimizer", slow_optimizer),
        ("initialize_criterion", smooth_criterion),
    ],
)
def test_supported_overrides_change_the_members(name, method):
    """Also with engine="auto", which must choose the skorch engine."""
    plain, engine = proba()
    assert engine.name == "stacked"
    own, engine = proba(**{name: method})
    assert engine.name == "skorch"
    assert f"Own overrides {name}" in engine.reason
    assert np.abs(own - plain).max() > 1e-3


# partial_fit ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SharpBalance, DeepEnsembleClassifier])
@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"weight_averaging": "uniform"}, r"weight_averaging='uniform', .*Use fit"),
        ({"prune": 0.5}, r"prune=0.5, .*set prune to None"),
        (
            {"weight_averaging": "exponential", "prune": 0.5},
            r"='exponential' and prune=0.5, .*_averaging to None and prune to None",
        ),
        (
            {"early_stopping": 3, "validation_fraction": 0.2},
            r"early_stopping=3, because the number.*set early_stopping to False",
        ),
        (
            {"checkpoint_dir": "folder"},
            r"checkpoint_dir='folder', .*set checkpoint_dir to None",
        ),
    ],
)
def test_partial_fit_raises_for_settings_of_a_whole_fit(kind, params, match):
    clf = kind(net_with(initialize=never), **FEW, **params)
    with pytest.raises(InvalidInputError, match=match):
        clf.partial_fit(X, y)
    assert not hasattr(clf, "estimators_")


@pytest.mark.parametrize("first", ["fit", "partial_fit"])
def test_partial_fit_with_other_classes_raises(first):
    names = np.array(["a", "b", "c"])
    clf = getattr(SharpBalance(**FEW), first)(X, names[y])
    before = clf.predict_proba(X)
    for classes in (["a", "b"], ["a", "b", "c", "d"], [0, 1, 2]):
        match = r"differs from the previous call, where it was \['a', 'b', 'c'\]"
        with pytest.raises(InvalidInputError, match=match):
            clf.partial_fit(X, names[y], classes=classes)
        np.testing.assert_array_equal(clf.predict_proba(X), before)
    clf.partial_fit(X, names[y], classes=["c", "a", "b"])  # the order does not matter
    assert (clf.predict_proba(X) != before).any()
