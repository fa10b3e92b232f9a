"""Options of fit: phases, schedules, augmentation, weights, continued training."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.utils import compute_sample_weight
from skorch.callbacks import LRScheduler
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.optim import MomentumSAM
from sklearn_sharpbalance.sharpness import FisherTraceScorer, LossScorer
from tests.cases import (
    N_EPOCHS,
    N_SAMPLES,
    SMALL,
    assert_same_members,
    column,
    noise,
    pictures,
    rest_slow,
    table,
    weights,
)

# Phases -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warmup_epochs", "n_warmup"),
    [(0, 0), (1, 1), (4, 4), (0.5, 2), (0.3, 1), (1.0, 4)],
)
def test_warmup_epochs_as_a_count_or_a_fraction(warmup_epochs, n_warmup):
    clf = SharpBalance(warmup_epochs=warmup_epochs, **SMALL).fit(*table())
    phases = ["warmup"] * n_warmup + ["balanced"] * (N_EPOCHS - n_warmup)
    assert column(clf, "phase") == phases
    assert column(clf, "epoch") == [1, 2, 3, 4]
    assert clf.n_iter_ == N_EPOCHS


@pytest.mark.parametrize(("warmup", "all_samples"), [("sam", True), ("sgd", False)])
def test_fit_with_only_a_warm_up_computes_no_scores(warmup, all_samples):
    clf = SharpBalance(warmup=warmup, warmup_epochs=1.0, **SMALL).fit(*table())
    assert clf.sharpness_ is None
    assert (clf.sam_masks_ == all_samples).all()


@pytest.mark.parametrize(("warmup", "selection"), [("sam", "all"), ("sgd", "none")])
def test_warm_up_equals_that_of_the_baseline(warmup, selection):
    X, y = table()
    params = {"sam": "sam", "rho": 0.3, **SMALL}
    clf = SharpBalance(warmup=warmup, warmup_epochs=2, **params).fit(X, y)
    baseline = SharpBalance(selection=selection, warmup_epochs=0, **params)
    baseline.fit(X, y)
    losses, reference = column(clf, "train_loss"), column(baseline, "train_loss")
    assert losses[:2] == reference[:2]
    assert losses[2:] != reference[2:]


def test_samples_are_scored_once_after_the_warm_up():
    seen = []

    def scorer(net, X, y):
        seen.append(len(net.history))
        return np.arange(len(y)) + 100.0 * len(net.history)

    clf = SharpBalance(sharpness=scorer, warmup_epochs=2, **SMALL).fit(*table())
    assert seen == [2, 2]
    np.testing.assert_array_equal(clf.sharpness_[0], np.arange(N_SAMPLES) + 200.0)


def test_rho_per_member():
    X, y = table()
    options = {"selection": "all", "engine": "skorch", **SMALL}
    mixed = SharpBalance(rho=[0.0, 0.4], **options).fit(X, y)
    for member, rho in enumerate((0.0, 0.4)):
        alone = SharpBalance(rho=rho, **options).fit(X, y)
        assert weights(mixed, member).equal(weights(alone, member))
        assert not weights(mixed, 1 - member).equal(weights(alone, 1 - member))


@pytest.fixture(scope="module")
def plain_fit():
    """Return an ensemble with the step of the paper."""
    return SharpBalance(sam="sam", **SMALL).fit(*table())


class OwnStep(MomentumSAM):
    """Leave the radius to the base class."""

    def __init__(self, params, base_optimizer=torch.optim.SGD, **options):
        super().__init__(params, base_optimizer, **options)


@pytest.mark.parametrize(
    ("sam", "rho"),
    [("sam", 0.05), ("look_sam", 0.05), ("momentum_sam", 0.3), (OwnStep, 0.3)],
)
def test_radius_of_none_is_that_of_the_step(sam, rho):
    X, y = table()
    params = SMALL | {"sam": sam, "optimizer": torch.optim.SGD}
    default = SharpBalance(**params).fit(X, y)
    assert default.rho is None
    assert_same_members(default, SharpBalance(rho=rho, **params).fit(X, y))
    other = SharpBalance(rho=0.1, **params).fit(X, y)
    assert not weights(default, 0).equal(weights(other, 0))


class CountsRows(nn.Module):
    """Count the samples of forward passes in training mode."""

    rows: ClassVar[int] = 0

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.head = nn.Linear(n_features, n_classes)

    def forward(self, x):
        if self.training:
            CountsRows.rows += len(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    ("sam", "selection", "passes"),
    [
        ("sam", "all", 2.0),
        ("momentum_sam", "all", 1.0),
        ("momentum_sam", "random", 1.0),
        ("momentum_sam", "none", 1.0),
        ("look_sam", "all", 1.2),
    ],
)
def test_n_passes_is_the_number_of_passes_per_sample(
    sam, selection, passes, monkeypatch
):
    monkeypatch.setattr(CountsRows, "rows", 0)
    X, y = table()
    few = {"n_estimators": 2, "max_epochs": 2, "batch_size": 5, "device": "cpu"}
    few |= {"warmup_epochs": 0, "flat_ratio": 0.5, "random_state": 0}
    clf = SharpBalance(CountsRows, sam=sam, selection=selection, **few).fit(X, y)
    # Some batches are filled up with samples of weight zero.
    assert CountsRows.rows / (2 * 2 * N_SAMPLES) == pytest.approx(passes, rel=0.15)
    assert clf.n_passes_ == pytest.approx(2 * 2 * passes)
    counted = clf.estimators_[0].module_.module.norm.num_batches_tracked.item()
    assert counted == 2 * len(range(0, N_SAMPLES, 5))


# Learning rates ---------------------------------------------------------------------

# The history has the learning rate of the last of three batches.
DONE = (np.arange(N_EPOCHS) + 2 / 3) / N_EPOCHS


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (None, 0.5 * (1 + np.cos(np.pi * DONE))),
        ("cosine", 0.5 * (1 + np.cos(np.pi * DONE))),
        ("steps", [1, 1, 0.1, 0.01]),
        ("constant", [1, 1, 1, 1]),
        (lambda done: 1 - done, 1 - DONE),
    ],
)
@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch"]))
def test_learning_rate_follows_the_schedule_in_both_phases(schedule, factors, engine):
    clf = SharpBalance(lr=0.2, lr_schedule=schedule, engine=engine, **SMALL)
    clf.fit(*table())
    for member in range(2):
        got = column(clf, "lr", member)
        np.testing.assert_allclose(got, 0.2 * np.asarray(factors), rtol=1e-6)


def test_skorch_scheduler():
    schedule = LRScheduler("StepLR", step_size=1, gamma=0.5)
    clf = SharpBalance(lr=0.2, lr_schedule=schedule, **SMALL).fit(*table())
    for member in range(2):
        rates = column(clf, "lr", member)
        assert rates == pytest.approx([0.2, 0.1, 0.05, 0.025])
    assert clf.engine_.name == "skorch"
    assert "LRScheduler" in clf.engine_.reason


# Augmentation -----------------------------------------------------------------------


def test_scores_and_predictions_are_not_augmented():
    X, y = pictures()
    calls = []

    def wipe(x):
        calls.append(len(x))
        return torch.zeros_like(x)

    options = {"warmup_epochs": 0, "max_epochs": 2, "batch_size": 20, "device": "cpu"}
    options |= {"n_estimators": 2, "random_state": 0, "validation_fraction": 0.25}
    options |= {"estimator": SmallCNN, "sam": "sam", "lr": 0.03}
    wiped = SharpBalance(train_transform=wipe, **options).fit(X, y)
    n_batches = 2 * 2 * 2  # members, epochs, batches
    assert len(calls) == n_batches
    plain = SharpBalance(train_transform=None, **options).fit(X, y)
    # Scores at epoch 0 depend on the pictures and the initial weights only.
    np.testing.assert_array_equal(wiped.sharpness_, plain.sharpness_)
    before = len(calls)
    probas = wiped.predict_proba(X)
    assert len(calls) == before
    assert np.ptp(probas[:, 0]) > 0  # predictions depend on the pictures
    # Members that were trained on blank pictures have a larger loss.
    assert column(wiped, "train_loss")[-1] > column(plain, "train_loss")[-1]


# Held-out samples -------------------------------------------------------------------


def test_validation_split_is_stratified():
    y = np.repeat(["a", "b", "c"], [60, 30, 10])
    X = np.random.default_rng(0).normal(size=(100, 5))
    clf = SharpBalance(validation_fraction=0.2, **SMALL).fit(X, y)
    assert clf.sam_masks_.shape == (2, 80)
    held = np.setdiff1d(np.arange(100), clf.train_indices_)
    assert np.unique(y[held], return_counts=True)[1].tolist() == [12, 6, 2]
    assert set(column(clf, "valid_acc")) <= set(np.arange(21) / 20)


@pytest.mark.parametrize("switch", rest_slow([True, np.True_]))
def test_early_stopping_true_has_a_patience_of_ten_epochs(switch):
    X, y = noise()
    options = {**SMALL, "max_epochs": 100, "lr": 0.5}
    clf = DeepEnsembleClassifier(
        validation_fraction=0.25, early_stopping=switch, **options
    ).fit(X, y)
    assert clf.n_iter_ - len(clf.history_[0]) == 10


@pytest.mark.parametrize("engine", rest_slow(["skorch", "stacked"]))
def test_early_stopping_restores_the_momentum_of_the_best_epoch(engine):
    """Training can be continued from the best epoch."""
    X, y = noise()
    options = {**SMALL, "max_epochs": 60, "lr": 0.5, "lr_schedule": "constant"}
    options["optimizer"] = torch.optim.SGD
    options |= {"validation_fraction": 0.25, "engine": engine}
    stopped = DeepEnsembleClassifier(early_stopping=3, **options).fit(X, y)
    best = len(stopped.history_[0])
    short = DeepEnsembleClassifier(**{**options, "max_epochs": best}).fit(X, y)
    assert_same_members(stopped, short)
    for one, other in zip(stopped.estimators_, short.estimators_):
        mine, theirs = (net.optimizer_.state_dict()["state"] for net in (one, other))
        for key, entries in mine.items():
            assert entries["momentum_buffer"].equal(theirs[key]["momentum_buffer"])


# Weights ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "degree"), [(FisherTraceScorer(), 2), (LossScorer(), 1)]
)
def test_sample_weights_scale_the_scores_like_the_loss(scorer, degree):
    """A loss with weight two has a gradient of twice the norm."""
    X, y = table()
    weight = np.random.default_rng(2).uniform(0.5, 2, N_SAMPLES)
    options = {"sharpness": scorer, "warmup_epochs": 0, "standardize": False, **SMALL}
    plain = SharpBalance(**options).fit(X, y).sharpness_
    weighted = SharpBalance(**options).fit(X, y, sample_weight=weight).sharpness_
    factor = (weight / weight.mean()) ** degree
    np.testing.assert_allclose(weighted, plain * factor, rtol=1e-5)


def test_scale_of_sample_weights_does_not_matter(plain_fit):
    X, y = table()
    weight = np.random.default_rng(2).integers(1, 4, N_SAMPLES)
    one = SharpBalance(sam="sam", **SMALL).fit(X, y, sample_weight=weight)
    other = SharpBalance(sam="sam", **SMALL).fit(X, y, sample_weight=8 * weight)
    assert_same_members(one, other)
    assert not weights(one, 0).equal(weights(plain_fit, 0))
    equal = SharpBalance(sam="sam", **SMALL).fit(
        X, y, sample_weight=np.full(N_SAMPLES, 3.0)
    )
    assert_same_members(equal, plain_fit)


LABELS = np.array(["no", "perhaps", "yes"])


@pytest.mark.parametrize(
    "class_weight", ["balanced", {"no": 1, "perhaps": 3, "yes": 5}]
)
def test_class_weights_equal_sample_weights(class_weight, plain_fit):
    X, y = table()
    y = LABELS[y]
    one = SharpBalance(class_weight=class_weight, **SMALL).fit(X, y)
    by_class = compute_sample_weight(class_weight, y)
    other = SharpBalance(**SMALL).fit(X, y, sample_weight=by_class)
    assert_same_members(one, other)
    np.testing.assert_array_equal(one.sharpness_, other.sharpness_)
    assert not weights(one, 0).equal(weights(plain_fit, 0))


def test_class_weights_and_sample_weights_multiply():
    X, y = table()
    weight = np.random.default_rng(2).uniform(0.5, 2, N_SAMPLES)
    both = SharpBalance(class_weight={0: 1, 1: 2, 2: 4}, **SMALL)
    both.fit(X, y, sample_weight=weight)
    product = SharpBalance(**SMALL).fit(X, y, sample_weight=weight * 2.0**y)
    assert_same_members(both, product)


# Continued training -----------------------------------------------------------------


def test_warm_start_continues_from_the_fitted_weights():
    X, y = table()
    clf = SharpBalance(warm_start=True, **SMALL).fit(X, y)
    before = [weights(clf, i) for i in range(2)]
    clf.set_params(lr=1e-12).fit(X, y)
    for i in range(2):
        torch.testing.assert_close(weights(clf, i), before[i], atol=1e-7, rtol=0)
    clf.set_params(warm_start=False).fit(X, y)
    assert (weights(clf, 0) - before[0]).abs().max() > 1e-2
    assert len(clf.history_[0]) == N_EPOCHS


def test_warm_start_adds_members():
    X, y = table()
    clf = SharpBalance(warm_start=True, **SMALL).fit(X, y)
    before = weights(clf, 0)
    clf.set_params(n_estimators=3, lr=1e-12).fit(X, y)
    assert len(clf.estimators_) == 3
    torch.testing.assert_close(weights(clf, 0), before, atol=1e-7, rtol=0)


@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch"]))
def test_calls_of_partial_fit_equal_epochs_of_fit(engine):
    """Bit for bit, for a constant learning rate and one epoch after the warm-up."""
    X, y = table()
    options = {"warmup_epochs": N_EPOCHS - 1, "engine": engine, **SMALL}
    steps = SharpBalance(**options)
    for epoch in range(N_EPOCHS):
        assert steps.partial_fit(X, y) is steps
        assert steps.n_iter_ == epoch + 1
    whole = SharpBalance(lr_schedule="constant", **options).fit(X, y)
    assert_same_members(steps, whole)
    assert column(steps, "phase") == column(whole, "phase")
    np.testing.assert_array_equal(steps.sam_masks_, whole.sam_masks_)


def test_partial_fit_learns_classes_of_later_calls():
    X, y = table()
    order = np.argsort(y, kind="stable")
    clf = SharpBalance(lr=0.1, optimizer=torch.optim.SGD, **SMALL)
    clf.partial_fit(X[order[:20]], y[order[:20]] * 0 + 1, classes=[0, 1, 2])
    assert clf.predict_proba(X).shape == (N_SAMPLES, 3)
    for _ in range(8):
        clf.partial_fit(X, y)
    assert clf.score(X, y) > 0.8
    np.testing.assert_array_equal(clf.classes_, [0, 1, 2])


@pytest.mark.parametrize("names", [np.arange(3), LABELS])
def test_class_weights_apply_to_classes_of_later_calls(names):
    X, y = table()
    early = y < 2
    options = {**SMALL, "class_weight": {names[1]: 3.0, names[2]: 5.0}}
    clf = SharpBalance(**options)
    clf.partial_fit(X[early], names[y[early]], classes=names).partial_fit(X, names[y])
    weight = np.array([1.0, 3.0, 5.0])[y]
    want = SharpBalance(**SMALL)
    want.partial_fit(X[early], names[y[early]], names, sample_weight=weight[early])
    want.partial_fit(X, names[y], sample_weight=weight)
    assert_same_members(clf, want)


def test_one_member():
    X, y = table()
    clf = SharpBalance(warmup="sgd", **{**SMALL, "n_estimators": 1}).fit(X, y)
    assert not clf.sam_masks_.any()  # no other members select samples
    np.testing.assert_allclose(
        clf.predict_proba(X), clf.member_predict_proba(X)[0], rtol=1e-6
    )


# Settings that change between calls of partial_fit ----------------------------------


@pytest.mark.parametrize(
    ("engine", "name"),
    rest_slow(
        [
            ("skorch", "lr"),
            ("stacked", "estimator__lr"),
            ("skorch", "estimator__lr"),
            ("stacked", "lr"),
        ]
    ),
)
def test_partial_fit_uses_the_current_learning_rate(engine, name):
    """Momentum is kept, as in one fit whose schedule decreases."""
    X, y = table()
    options = {"warmup_epochs": N_EPOCHS - 1, "engine": engine, **SMALL, name: 0.5}
    steps = SharpBalance(**options)
    for epoch in range(N_EPOCHS):
        if 2 * epoch >= N_EPOCHS:
            steps.set_params(**{name: 0.125})
        steps.partial_fit(X, y)
    whole = SharpBalance(
        **options, lr_schedule=lambda progress: 1.0 if progress < 0.5 else 0.25
    )
    assert_same_members(steps, whole.fit(X, y))
    assert column(steps, "lr") == column(whole, "lr")
    assert steps.net_.lr == steps.estimators_[0].lr == 0.125


def test_partial_fit_with_lr_in_member_params_or_none():
    X, y = table()
    clf = SharpBalance(lr=0.2, member_params=[{}, {"lr": 0.03}], **SMALL)
    for rate in (0.2, 0.02, 0.02, None):
        clf.set_params(lr=rate).partial_fit(X, y)
    rates = [[record["lr"] for record in history] for history in clf.history_]
    assert rates[0] == pytest.approx([0.2, 0.02, 0.02, 0.003])
    assert rates[1] == pytest.approx([0.03] * 4)
