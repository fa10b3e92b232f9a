"""Gradient passes of a training, and epochs that match those of another one."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.evaluation import gradient_passes, match_passes
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import last_step
from sklearn_sharpbalance.optim import LookSAM
from tests.cases import rest_slow
from tests.evaluation.cases import SMALL, sharpbalance

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


LOOK = {"sam": "look_sam", "selection": "all"}
LOOK_NET = NeuralNetClassifier(MLP, optimizer=LookSAM, optimizer__k=4)


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"selection": "all"}, 3 * 20),
        ({"selection": "none", "warmup": "sgd"}, 3 * 10),
        # Five epochs of SAM, five of descent.
        ({"selection": "none"}, 3 * 15),
        ({"selection": "none", "warmup_epochs": 2}, 3 * 12),
        # The warm-up, and balanced epochs with a fraction of 1 - 0.6^2.
        ({"selection": "sharpest"}, 3 * (10 + 5 * 1.64)),
        ({"selection": "sharpest", "n_estimators": 2}, 2 * (10 + 5 * 1.4)),
        ({"selection": "random", "warmup": "sgd"}, 3 * (5 + 5 * 1.64)),
        # Samples in no member's lowest: 0.6^3; a third of them, or two thirds.
        (
            {"selection": "flattest_union", "warmup_epochs": 0},
            3 * 10 * (1.64 + 0.6**3 / 3),
        ),
        ({"warmup_epochs": 0}, 3 * 10 * (1.64 + 0.6**3 * 2 / 3)),  # "flattest"
        # Momentum-SAM passes every sample once, LookSAM its own 1 + 1/k times.
        ({"sam": "momentum_sam"}, 3 * 10),
        ({"sam": "momentum_sam", "selection": "all"}, 3 * 10),
        (LOOK, 3 * 12),
        (LOOK | {"selection": "sharpest"}, 3 * (6 + 5 * (1 + 0.64 / 5))),
        (LOOK | {"estimator__optimizer__k": 2}, 3 * 15),
        (LOOK | {"member_params": [{"optimizer__k": k} for k in (1, 2, 4)]}, 47.5),
        ({"estimator": LOOK_NET, "selection": "all"}, 3 * 12.5),
    ],
)
def test_expected_passes_equal_values_by_hand(options, passes):
    estimator = sharpbalance(max_epochs=10, **options)
    assert gradient_passes(estimator) == pytest.approx(passes, rel=0.01)


@pytest.mark.parametrize(
    ("estimator", "passes"),
    [
        (DeepEnsembleClassifier(n_estimators=4, max_epochs=10), 40),
        (DeepEnsembleClassifier(), 150),  # three members, fifty epochs
        (make_pipeline(StandardScaler(), DeepEnsembleClassifier(max_epochs=7)), 21),
        (DiversifiedEnsembleClassifier(n_estimators=4, max_epochs=10), 40),
        # Two of four members pass the unlabelled samples.
        (
            DiversifiedEnsembleClassifier(loss="a2d", n_estimators=4, max_epochs=10),
            4 * 15,
        ),
    ],
)
def test_expected_passes_of_other_ensembles(estimator, passes):
    assert gradient_passes(estimator) == pytest.approx(passes, rel=0.01)


@pytest.mark.parametrize(
    ("in_pipeline", "kind"),
    rest_slow(
        [
            (False, SharpBalance),
            (True, DeepEnsembleClassifier),
            (False, DeepEnsembleClassifier),
            (True, SharpBalance),
        ],
        keep=2,
    ),
)
def test_epochs_that_follow_the_table_are_counted(kind, in_pipeline):
    X, y = make_classification(300, 5, random_state=0)
    frame = pd.DataFrame(X).add_prefix("x")
    frame["text"] = np.where(y == 1, "yes", "no")
    clf = kind(max_epochs=None, random_state=0)
    if in_pipeline:
        frame = frame.drop(columns="text")
        clf = make_pipeline(make_pipeline(StandardScaler()), clf)
    expected = gradient_passes(clf, frame, y)
    clf.fit(frame, y)
    assert last_step(clf).settings_["max_epochs"] == 37
    assert gradient_passes(clf) == pytest.approx(expected, rel=0.03)
    assert match_passes(clone(clf), expected, frame, y) == {"max_epochs": 37}


def test_passes_of_a_fitted_ensemble_count_its_own_sets(data):
    X, y = data
    clf = sharpbalance(max_epochs=5, warmup_epochs=2, random_state=0).fit(X, y)
    fraction = clf.sam_masks_.sum() / clf.sam_masks_.size
    assert gradient_passes(clf) == pytest.approx(3 * (2 * 2 + 3 * (1 + fraction)))
    plain = sharpbalance(max_epochs=4, warmup="sgd", selection="all").fit(X, y)
    assert gradient_passes(plain) == pytest.approx(3 * (2 * 1 + 2 * 2))
    stopped = DeepEnsembleClassifier(
        **SMALL,
        max_epochs=20,
        early_stopping=1,
        validation_fraction=0.3,
        random_state=0,
    ).fit(X, y)
    assert gradient_passes(stopped) < 3 * 20
    joint = DiversifiedEnsembleClassifier(**SMALL, max_epochs=3, loss="divdis")
    joint.fit(X, y, X_unlabeled=X)
    assert gradient_passes(joint) == pytest.approx(3 * 3 * (1 + 2 / 3))


def test_fitted_ensembles_count_steps_with_fewer_passes(data):
    X, y = data
    options = {"max_epochs": 4, "warmup_epochs": 2, "random_state": 0}
    once = sharpbalance(sam="momentum_sam", **options).fit(X, y)
    assert once.n_passes_ == gradient_passes(once) == pytest.approx(3 * 4)
    some = sharpbalance(sam="look_sam", **options).fit(X, y)
    fraction = some.sam_masks_.mean()
    expected = 3 * (2 * 1.2 + 2 * (1 + 0.2 * fraction))
    assert some.n_passes_ == gradient_passes(some) == pytest.approx(expected)
    apart = [{"optimizer__k": k} for k in (1, 2, 4)]
    own = sharpbalance(sam="look_sam", member_params=apart, **options).fit(X, y)
    fractions = own.sam_masks_.mean(axis=1)
    each = [2 * (1 + 1 / k) + 2 * (1 + s / k) for k, s in zip((1, 2, 4), fractions)]
    assert own.n_passes_ == pytest.approx(sum(each))


@pytest.mark.parametrize(
    ("estimator", "passes", "params"),
    [
        (sharpbalance(sam="momentum_sam"), 150, {"max_epochs": 50}),
        (sharpbalance(sam="look_sam", selection="all"), 180, {"max_epochs": 50}),
        (sharpbalance(selection="all"), 150, {"max_epochs": 25}),
        (DeepEnsembleClassifier(n_estimators=5), 150, {"max_epochs": 30}),
        # 3 * (2 * 4 + 1 * 4) = 36 passes in eight epochs.
        (sharpbalance(selection="none"), 36, {"max_epochs": 8}),
        # The warm-up stays a fifth of the training: 3 * (2 * 2 + 8).
        (
            sharpbalance(selection="none", warmup_epochs=10, max_epochs=50),
            36,
            {"max_epochs": 10, "warmup_epochs": 2},
        ),
        (
            sharpbalance(selection="none", warmup_epochs=np.int64(10), max_epochs=50),
            36,
            {"max_epochs": 10, "warmup_epochs": 2},
        ),
        (DeepEnsembleClassifier(n_estimators=5), 1, {"max_epochs": 1}),
    ],
)
def test_matched_epochs_equal_values_by_hand(estimator, passes, params):
    assert match_passes(estimator, passes) == params


def test_matched_epochs_have_the_nearest_cost():
    clf = sharpbalance(n_estimators=3)
    for passes in (20, 77):
        n = match_passes(clf, passes)["max_epochs"]
        costs = [
            gradient_passes(clf.set_params(max_epochs=k)) for k in (n, n - 1, n + 1)
        ]
        gaps = np.abs(np.array(costs) - passes)
        assert gaps[0] == gaps.min()


def test_passes_of_other_classifiers_raise():
    with pytest.raises(InvalidInputError, match="LogisticRegression"):
        gradient_passes(LogisticRegression())
