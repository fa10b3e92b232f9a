"""Defaults for images: augmentation, step, network and schedule."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    ResNet18,
    SmallCNN,
    WideResNet,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.evaluation import gradient_passes
from sklearn_sharpbalance.exceptions import CheckpointMismatchError, SharpBalanceWarning
from sklearn_sharpbalance.networks import SmallResNet
from sklearn_sharpbalance.optim import MomentumSAM
from sklearn_sharpbalance.selection import AllSelector
from sklearn_sharpbalance.training import image_recipe as recipe
from sklearn_sharpbalance.training.net_building import settings_in_force
from sklearn_sharpbalance.training.prepare import prepare
from tests.cases import pictures, weights

RNG = np.random.default_rng(0)
y = np.arange(24) % 2
FEW = {"n_estimators": 2, "max_epochs": 1, "device": "cpu", "random_state": 0}
NARROW = {**FEW, "estimator__module__width": 4}  # of the default network
LOSS = nn.CrossEntropyLoss
EXPLICIT = {
    "train_transform": RandomCropFlip(1, flip=False, mode="reflect", warp=0.1),
    "sam": "momentum_sam",
    "rho": 0.3,
}


class Own(SmallResNet):
    """A network of the user."""


def crops(padding, flip, warp=0.1):
    return repr(RandomCropFlip(padding, flip, mode="reflect", warp=warp))


def uint8(*shape):
    return RNG.integers(0, 256, size=(len(y), *shape), dtype=np.uint8)


def items(X):
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(y))


def settings_of(X, kind=SharpBalance, **params):
    """Return the settings of a fit, without the training."""
    clf = kind(**{**FEW, **params})
    labels = None if isinstance(X, TensorDataset) else y
    setup = prepare(clf, X, labels, None)
    return settings_in_force(setup)


def transform_of(X, kind=SharpBalance, **params):
    """Return the name of the augmentation of a fit."""
    return settings_of(X, kind, **params)["train_transform"]


# Where it applies ---------------------------------------------------------------------

COLOR, CROPS = uint8(3, 8, 8), crops(1, True)


@pytest.mark.parametrize(
    ("X", "params", "expected"),
    [
        (uint8(3, 16, 16), {}, crops(2, True)),
        (uint8(16, 24, 3), {}, crops(2, True)),
        (uint8(3, 32, 32), {}, crops(4, True)),
        (uint8(8, 8), {}, crops(1, False)),
        (uint8(1, 8, 8), {}, crops(1, False)),
        (uint8(4, 8, 8), {}, "None"),
        (torch.from_numpy(COLOR), {}, CROPS),
        (items(COLOR), {}, CROPS),
        (items(COLOR.astype(np.float32)), {}, CROPS),
        # A given augmentation replaces the default.
        (COLOR, {"train_transform": None}, "None"),
        (COLOR, {"train_transform": "crop_flip"}, repr(RandomCropFlip())),
        (COLOR, {"train_transform": torch.clone}, "clone"),
        # Networks of this package, as classes.
        (COLOR, {"estimator": SmallResNet}, CROPS),
        (COLOR, {"estimator": SmallResNet(3, 2)}, CROPS),
        (COLOR, {"estimator": SmallCNN}, "None"),  # too small to gain by it
        (COLOR, {"estimator": ResNet18, "estimator__module__width": 4}, CROPS),
        (COLOR, {"estimator": WideResNet, "estimator__module__depth": 10}, CROPS),
        # Other networks and samples.
        (COLOR, {"estimator": Own}, "None"),
        (COLOR, {"estimator__module": Own}, "None"),
        (
            uint8(1, 8, 8),
            {"estimator": MLP, "estimator__module__n_features": 64},
            "None",
        ),
        (
            COLOR,
            {"estimator": NeuralNetClassifier(SmallResNet, criterion=LOSS)},
            "None",
        ),
        (uint8(3, 4, 4), {}, "None"),  # for the default network, a perceptron
        (COLOR / 255, {}, "None"),
        (RNG.normal(size=(len(y), 5)), {}, "None"),
        (RNG.normal(size=(len(y), 5, 3)), {}, "None"),
    ],
)
def test_the_input_and_the_network_decide(X, params, expected):
    assert transform_of(X, **params) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, crops(1, False)),
        ({"train_transform": None}, "None"),
        ({"shared_trunk": nn.Flatten()}, "None"),
    ],
)
def test_joint_training_augments_without_a_trunk(params, expected):
    X, labels = pictures(24)
    clf = DiversifiedEnsembleClassifier(**FEW, **params).fit(X, labels)
    assert clf.settings_["train_transform"] == expected


# The step and the epochs --------------------------------------------------------------

MOMENTUM = {"sam": "momentum_sam", "rho": 0.3}
TWO_PASSES = {"sam": "sam", "rho": 0.05}
NARROW_18 = {"estimator": ResNet18, "estimator__module__width": 4}


@pytest.mark.parametrize(
    ("X", "params", "expected"),
    [
        (uint8(3, 8, 8), {}, MOMENTUM),
        (uint8(8, 8), {}, MOMENTUM),
        (uint8(3, 8, 8), NARROW_18, MOMENTUM),
        (uint8(3, 8, 8), {"estimator": SmallResNet(3, 2)}, MOMENTUM),
        # One of the two is given.
        (uint8(3, 8, 8), {"rho": 0.1}, MOMENTUM | {"rho": 0.1}),
        (uint8(3, 8, 8), {"sam": MomentumSAM}, MOMENTUM),
        (uint8(3, 8, 8), {"sam": "sam"}, TWO_PASSES),
        (uint8(3, 8, 8), {"sam": "look_sam"}, TWO_PASSES | {"sam": "look_sam"}),
        # SAM ensembles.
        (uint8(3, 8, 8), {"selection": AllSelector()}, TWO_PASSES),
        (uint8(3, 8, 8), {"selection": "all", "sam": "momentum_sam"}, MOMENTUM),
        (uint8(3, 8, 8), {"selection": "random"}, MOMENTUM),
        # Momentum-SAM needs a momentum.
        (uint8(3, 8, 8), {"estimator__optimizer__weight_decay": 1e-3}, MOMENTUM),
        (uint8(3, 8, 8), {"lr": 0.05, "train_transform": None}, MOMENTUM),
        (uint8(3, 8, 8), {"estimator__optimizer__momentum": 0.0}, TWO_PASSES),
        (uint8(3, 8, 8), {"optimizer": torch.optim.Adagrad}, TWO_PASSES),
        (uint8(3, 8, 8), {"estimator__optimizer": torch.optim.Adagrad}, TWO_PASSES),
        (
            uint8(3, 8, 8),
            {"member_params": [{"optimizer__momentum": 0.0}, {}]},
            TWO_PASSES,
        ),
        # Other networks and samples.
        (uint8(3, 8, 8), {"estimator": SmallCNN}, TWO_PASSES),
        (uint8(3, 8, 8) / 255, {}, TWO_PASSES),
        (RNG.normal(size=(len(y), 5)), {"estimator": MLP}, TWO_PASSES),
    ],
)
def test_step_of_images(X, params, expected):
    assert expected.items() <= settings_of(X, **params).items()


# Width, batch size and schedule -------------------------------------------------------

FREE = {"max_epochs": None}
SCHEDULE = {"max_epochs": 90, "batch_size": 64, "lr_schedule": "one_cycle"}
STEP = {"lr": 0.4 * (64 / 512) ** 0.5, "weight_decay": 2e-3, "nesterov": True}
RECIPE = SCHEDULE | STEP | {"label_smoothing": 0.05}
USUAL = {"batch_size": 128, "lr": 0.1, "lr_schedule": "cosine", "weight_decay": 5e-4}


@pytest.mark.parametrize("kind", [SharpBalance, DeepEnsembleClassifier])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, RECIPE),
        (NARROW_18, RECIPE),
        ({"estimator": SmallResNet(3, 2)}, RECIPE),
        # Every setting can be given alone; the rate follows the batch size.
        ({"max_epochs": 7}, RECIPE | {"max_epochs": 7}),
        ({"estimator__max_epochs": 7}, RECIPE | {"max_epochs": 7}),
        ({"lr": 0.05}, RECIPE | {"lr": 0.05}),
        ({"batch_size": 128}, RECIPE | {"batch_size": 128, "lr": 0.2}),
        ({"estimator__batch_size": 128}, RECIPE | {"batch_size": 128, "lr": 0.2}),
        ({"lr_schedule": "steps"}, RECIPE | {"lr_schedule": "steps"}),
        ({"estimator__optimizer__weight_decay": 0.0}, RECIPE | {"weight_decay": 0.0}),
        ({"estimator__criterion__label_smoothing": 0}, RECIPE | {"label_smoothing": 0}),
        ({"estimator__optimizer__momentum": 0.0}, RECIPE | {"nesterov": None}),
        ({"estimator__criterion": nn.NLLLoss}, RECIPE | {"label_smoothing": None}),
        # The schedule only.
        ({"estimator": Own}, SCHEDULE | {"lr": 0.1, "weight_decay": 5e-4}),
        ({"optimizer": torch.optim.AdamW}, SCHEDULE | {"lr": 1e-3}),
        # Nothing.
        ({"estimator": NeuralNetClassifier(SmallResNet, criterion=LOSS)}, {"lr": 0.01}),
    ],
)
def test_every_setting_of_the_recipe_can_be_replaced(kind, params, expected):
    found = settings_of(uint8(3, 8, 8), kind, **(FREE | params))
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("X", [uint8(3, 4, 4), uint8(3, 8, 8) / 255])
def test_other_samples_have_the_usual_schedule(X):
    assert USUAL.items() <= settings_of(X).items()


# More images: a wider network, larger batches, fewer epochs. Chosen on CIFAR-10 and
# CIFAR-100 by examples/benchmarks/bench_images.py.
@pytest.mark.parametrize(
    ("n", "channels", "expected"),
    [
        (1_000, 3, {"max_epochs": 60, "batch_size": 64, "width": 16, "rho": 0.3}),
        (1_000, 1, {"max_epochs": 30}),  # grey
        (600, 1, {"max_epochs": 50}),
        (5_000, 1, {"max_epochs": 30, "batch_size": 128, "width": 32, "lr": 0.2}),
        (20_000, 1, {"max_epochs": 30, "batch_size": 512, "width": 64, "rho": 1.0}),
        (20_000, 1, {"train_transform": crops(1, False, warp=0.2)}),
    ],
)
def test_the_number_of_images_decides(n, channels, expected):
    shape = channels, 8, 8
    X = np.broadcast_to(uint8(*shape)[:2], (n // 2, 2, *shape)).reshape(n, *shape)
    prepared = prepare(SharpBalance(device="cpu"), X, np.arange(n) % 2, None)
    assert expected.items() <= settings_in_force(prepared).items()


@pytest.mark.parametrize("kind", [DeepEnsembleClassifier, SharpBalance])
def test_passes_are_those_of_the_defaults(kind):
    X = uint8(3, 8, 8)
    assert gradient_passes(kind(n_estimators=2, device="cpu"), X, y) == 2 * 90
    short = kind(**NARROW)
    before = gradient_passes(short, X, y)
    assert before == gradient_passes(short.fit(X, y)) == 2 * FEW["max_epochs"]


# The fit ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    return SharpBalance(**NARROW).fit(*pictures(24))


def test_the_parameter_stays_as_the_user_gave_it(fitted):
    for clf in (fitted, clone(fitted)):
        assert clf.get_params()["train_transform"] == "auto"
        assert clf.get_params()["sam"] is None
    assert repr(fitted) == repr(SharpBalance(**NARROW))


DEFAULT = {**NARROW, "n_estimators": 1, "max_epochs": 1}
FORMS = {
    "list": np.ndarray.tolist,
    "arrays": list,
    "tensor": torch.as_tensor,
    "integers": lambda X: X.astype(int),
    "floats": lambda X: X.astype(np.float32),
    "channels_last": lambda X: np.moveaxis(X, 1, -1).astype(float),
}


@pytest.fixture(scope="module")
def default_fit():
    X, labels = pictures(24)
    return SharpBalance(**DEFAULT).fit(X, labels)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_images_get_the_same_model(form, default_fit):
    X, labels = pictures(24)
    clf = SharpBalance(**DEFAULT).fit(FORMS[form](X), labels)
    assert clf.settings_ == default_fit.settings_
    want = default_fit.predict_proba(X)
    for given in (X, FORMS[form](X)):
        np.testing.assert_array_equal(clf.predict_proba(given), want)


def test_images_of_float_warn_that_their_defaults_differ(recwarn):
    X, labels = pictures(24)
    items = TensorDataset(torch.from_numpy(X / 255).float(), torch.from_numpy(labels))
    for given in ((X / 255, labels), (items,)):
        with pytest.warns(SharpBalanceWarning, match="uint8"):
            SharpBalance(**DEFAULT).fit(*given)
    recwarn.clear()
    SharpBalance(**DEFAULT, train_transform=None).fit(X / 255, labels)
    SharpBalance(**DEFAULT).fit(X / 255 - 0.5, labels)
    assert not [w for w in recwarn if "uint8" in str(w.message)]


def test_partial_fit_has_the_same_default_in_all_calls():
    X, labels = pictures(24)
    clf = SharpBalance(**{**NARROW, "max_epochs": None})
    clf.partial_fit(X, labels)
    first = dict(clf.settings_)
    assert first["train_transform"] == crops(1, False)
    assert first["sam"] == "momentum_sam"
    clf.partial_fit(X.astype(np.float32), labels)
    clf.partial_fit(X, labels)
    assert clf.settings_ == first
    assert clf.input_format_.dtype == "uint8"


def test_warm_starts_have_the_default_of_their_own_samples(fitted):
    X, labels = pictures(24)
    clf = SharpBalance(**NARROW, warm_start=True).fit(X, labels)
    assert clf.settings_ == fitted.settings_
    clf.fit(X / 255, labels)
    assert clf.settings_["train_transform"] == "None"
    assert clf.settings_["sam"] == "sam"


# Stored results -----------------------------------------------------------------------


def test_checkpoints_belong_to_the_value_in_force(fitted, tmp_path, monkeypatch):
    X, labels = pictures(24)
    SharpBalance(**NARROW, checkpoint_dir=tmp_path).fit(X, labels)
    same = SharpBalance(**NARROW, **EXPLICIT, checkpoint_dir=tmp_path).fit(X, labels)
    assert torch.equal(weights(same), weights(fitted))
    monkeypatch.setattr(recipe, "SIDE_OVER_PADDING", 4)
    with pytest.raises(CheckpointMismatchError, match="train_transform"):
        SharpBalance(**NARROW, checkpoint_dir=tmp_path).fit(X, labels)


def test_checkpoints_of_tables_do_not_depend_on_the_spelling(tmp_path):
    X, labels = RNG.normal(size=(24, 5)), y
    given = {"train_transform": None, "sam": "momentum_sam", "rho": 0.1}
    first = SharpBalance(**FEW, **given, checkpoint_dir=tmp_path)
    first.fit(X, labels)
    again = SharpBalance(**FEW, checkpoint_dir=tmp_path).fit(X, labels)
    assert torch.equal(weights(first), weights(again))
