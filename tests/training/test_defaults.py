"""A setting that equals its default changes nothing, alone or with another one."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.networks import SmallResNet
from tests.cases import rest_slow

TABLE = make_classification(60, 5, random_state=0)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(24, 3, 8, 8), dtype=np.uint8), np.arange(24) % 2
FAST = {"n_estimators": 2, "device": "cpu", "random_state": 0}
SHORT = {
    "table": {"max_epochs": 3, "estimator__module__hidden": (8,)},
    "images": {"max_epochs": 2, "estimator__module__width": 4},
}
DATA = {"table": TABLE, "images": IMAGES}
EQUAL = {
    "table": {
        "lr": 0.003,
        "estimator__lr": 0.003,
        "lr_schedule": "cosine",
        "optimizer": torch.optim.AdamW,
        "estimator__optimizer": torch.optim.AdamW,
        "estimator__optimizer__weight_decay": 3.0,
        "estimator__optimizer__betas": (0.9, 0.999),
        "member_params": [{"lr": 0.003}, {"optimizer__weight_decay": 3.0}],
        "max_epochs": 3,
        "batch_size": 128,
        "sam": "momentum_sam",
        "rho": 0.1,
    },
    "images": {
        "lr": 0.4 * (64 / 512) ** 0.5,
        "estimator__lr": 0.4 * (64 / 512) ** 0.5,
        "lr_schedule": "one_cycle",
        "optimizer": torch.optim.SGD,
        "estimator__optimizer": torch.optim.SGD,
        "estimator__optimizer__weight_decay": 2e-3,
        "estimator__optimizer__momentum": 0.9,
        "estimator__optimizer__nesterov": True,
        "estimator__criterion": nn.CrossEntropyLoss,
        "member_params": [{"lr": 0.4 * (64 / 512) ** 0.5}, {}],
        "estimator": SmallResNet,
        "estimator__criterion__label_smoothing": 0.05,
        "train_transform": RandomCropFlip(padding=1, mode="reflect", warp=0.1),
        "max_epochs": 2,
        "batch_size": 64,
        "sam": "momentum_sam",
        "rho": 0.3,
    },
}
CASES = [
    (kind, names)
    for kind, equal in EQUAL.items()
    for names in [*combinations(equal, 1), *combinations(equal, 2)]
]
ALONE = [case for case in CASES if len(case[1]) == 1]
# Every setting in one of four groups, of neighbours in the list above.
GROUPS = [
    (kind, tuple(names))
    for kind, equal in EQUAL.items()
    for names in np.array_split(list(equal), 4)
]
OF_SHARPNESS = {"sam", "rho"}


def outputs(ensemble, kind, **params):
    X, y = DATA[kind]
    clf = ensemble(**(FAST | SHORT[kind] | params)).fit(X, y)
    return clf.member_predict_proba(X)


@pytest.fixture(scope="module")
def default():
    return {
        (ensemble, kind): outputs(ensemble, kind)
        for ensemble in (SharpBalance, DeepEnsembleClassifier)
        for kind in DATA
    }


@pytest.mark.parametrize(("kind", "names"), rest_slow(GROUPS + CASES, GROUPS))
def test_values_equal_to_the_defaults_change_nothing(kind, names, default):
    given = {name: EQUAL[kind][name] for name in names}
    np.testing.assert_array_equal(
        outputs(SharpBalance, kind, **given), default[SharpBalance, kind]
    )


@pytest.mark.parametrize(
    ("kind", "names"), rest_slow(ALONE, [case for case in ALONE if "table" in case])
)
def test_values_equal_to_the_defaults_of_a_deep_ensemble(kind, names, default):
    if OF_SHARPNESS.intersection(names):
        pytest.skip("a deep ensemble has no such parameter")
    given = {name: EQUAL[kind][name] for name in names}
    np.testing.assert_array_equal(
        outputs(DeepEnsembleClassifier, kind, **given),
        default[DeepEnsembleClassifier, kind],
    )
