"""Aggregation rules: means, votes, soups, best member and temperature."""

import copy
import pickle
import warnings
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import make_classification
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier, load
from sklearn_sharpbalance import DiversifiedEnsembleClassifier as Diversified
from sklearn_sharpbalance.aggregation.nets import (
    greedy_soup,
    mean_weights,
    recompute_batch_statistics,
)
from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.exceptions import (
    InvalidInputError,
    SharpBalanceWarning,
    UndefinedMetricWarning,
)
from sklearn_sharpbalance.networks import finetune
from sklearn_sharpbalance.networks.transfer import FrozenBatchNorm1d
from tests.cases import rest_slow

NEED_VALIDATION = ["greedy_soup", "best_member", "temperature"]
FAST = {"max_epochs": 4, "random_state": 0, "device": "cpu"}


def table(n=200, seed=0):
    X, y = make_classification(
        n, 8, n_informative=5, n_classes=3, flip_y=0.2, random_state=seed
    )
    return X.astype(np.float32), y


class Normed(nn.Module):
    """Two BatchNorm layers, the first on the input itself."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.BatchNorm1d(n_features)
        self.hidden = nn.Linear(n_features, 12)
        self.second = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(12, n_classes)

    def forward(self, x):
        x = self.second(self.hidden(self.first(x))).relu()
        return self.last(self.drop(x))


@cache
def fitted(**params):
    params = {"n_estimators": 3, "validation_fraction": 0.3, **FAST, **params}
    return DeepEnsembleClassifier(**params).fit(*table())


def fit(**params):
    """Return a copy of a fitted ensemble, and its data."""
    return copy.deepcopy(fitted(**params)), *table()


def split(clf, X, y):
    """Return the training data with the validation samples."""
    held = np.setdiff1d(np.arange(len(X)), clf.train_indices_)
    kept = clf.train_indices_
    return TrainingData(X[kept], y[kept], valid=TrainingData(X[held], y[held]))


def trained_from_one_start(n=3):
    """Return members with a common warm-up, whose mean weights are meaningful."""
    common = {"estimator": Normed, "n_estimators": 1, "standardize": False}
    base, X, y = fit(warm_start=True, **common)
    apart = [copy.deepcopy(base) for _ in range(n)]
    for seed, clf in enumerate(apart):
        clf.set_params(max_epochs=3, lr=0.02, random_state=seed).fit(X, y)
    nets = [clf.estimators_[0] for clf in apart]
    return nets, split(base, X, y)


def test_majority_breaks_ties_by_the_mean_logit():
    logits = np.array([[[1.0, 0.0]], [[0.0, 3.0]]])
    assert AGGREGATIONS.resolve("majority").combine(logits).argmax() == 1


def soups_that_warn(clf):
    """Return the warnings of a fit about the starts of its members."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clf.fit(*table())
    return [w for w in caught if "start from different" in str(w.message)]


def test_a_soup_of_members_from_different_starts_warns_once():
    """Not of members from one start, nor if other rules are used."""
    torch.manual_seed(0)
    start = finetune(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), 3)
    options = {"n_estimators": 3, "validation_fraction": 0.3, **FAST}
    soup = DeepEnsembleClassifier(aggregation="uniform_soup", **options)
    (warning,) = soups_that_warn(soup)
    assert warning.category is SharpBalanceWarning
    assert not soups_that_warn(clone(soup).set_params(n_estimators=1))
    assert not soups_that_warn(clone(soup).set_params(aggregation="greedy_soup"))
    pretrained = partial(finetune, start, 3, trainable="all")
    assert not soups_that_warn(clone(soup).set_params(estimator=pretrained))


def test_ensemble_predicts_with_its_soup():
    clf, X, y = fit(estimator=Normed, aggregation="uniform_soup", standardize=False)
    data = split(clf, X, y)
    (soup,) = clf.predictors_
    states = [net.module_.state_dict() for net in clf.estimators_]
    for key, value in soup.module_.state_dict().items():
        if value.is_floating_point() and "running" not in key:
            want = sum(state[key].double() for state in states) / 3
            torch.testing.assert_close(value.double(), want, rtol=1e-5, atol=1e-7)
    first = soup.module_.module.first
    torch.testing.assert_close(first.running_mean, torch.tensor(data.X.mean(0)))
    logits = soup.module_.eval()(torch.tensor(X)).detach()
    np.testing.assert_allclose(clf.predict_proba(X), logits.softmax(1), atol=1e-6)


def test_statistics_of_one_batch_equal_those_of_torch():
    nets, data = trained_from_one_start(1)
    net = nets[0]
    recompute_batch_statistics(net, data, batch_size=10_000)
    mine = {k: v.clone() for k, v in net.module_.state_dict().items() if "running" in k}
    for norm in (net.module_.module.first, net.module_.module.second):
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    net.module_(torch.tensor(data.X))
    assert len(mine) == 4
    for key, value in mine.items():
        torch.testing.assert_close(value, net.module_.state_dict()[key])


def shifted(x):
    """Change the moments of a batch, as padding of pictures does."""
    return 2 * x + 3 + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize(
    ("ensemble", "options"),
    [
        (DeepEnsembleClassifier, {"weight_averaging": "uniform"}),
        pytest.param(
            DeepEnsembleClassifier,
            {"aggregation": "uniform_soup"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_statistics_are_those_of_augmented_samples(ensemble, options):
    X, y = table()
    before = torch.get_rng_state()
    clf = ensemble(
        Normed, 2, standardize=False, train_transform=shifted, **FAST, **options
    ).fit(X, y)
    assert (torch.get_rng_state() == before).all()
    first = clf.predictors_[0].module_.module.first
    assert first.running_mean.numpy() == pytest.approx(2 * X.mean(0) + 3, abs=0.03)
    assert first.running_var.numpy() == pytest.approx(4 * X.var(0), rel=0.05)
    again = clone(clf).fit(X, y)
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_recomputing_statistics_draws_nothing_and_skips_frozen_layers():
    X, y = table()
    body = Normed(8, 3)
    body.first.running_mean.fill_(5.0)

    def build():
        return finetune(body, 3, trainable="head")

    net = DeepEnsembleClassifier(build, 1, **FAST).fit(X, y).estimators_[0]
    assert isinstance(net.module_.module.first, FrozenBatchNorm1d)
    before = torch.get_rng_state()
    recompute_batch_statistics(net, TrainingData(X, y))
    assert (torch.get_rng_state() == before).all()
    assert (net.module_.module.first.running_mean == 5.0).all()
    assert not net.module_.training
    assert net.module_.module.first.momentum == 0.1


class Drawn(nn.Module):
    """Random features in a non-persistent buffer, with complex weights."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        drawn = torch.randn(n_features, 16)
        self.register_buffer("drawn", drawn, persistent=False)
        self.register_buffer("late", None, persistent=False)
        self.weight = nn.Parameter(torch.randn(16, n_classes, dtype=torch.complex64))

    def forward(self, x):
        self.late = torch.arange(len(x))  # its shape differs between members
        return ((x @ self.drawn).tanh().to(torch.complex64) @ self.weight).abs()


def test_soup_averages_non_persistent_buffers_and_complex_weights():
    clf, X, _ = fit(estimator=Drawn, n_estimators=1, aggregation="uniform_soup")
    np.testing.assert_allclose(
        clf.predict_proba(X), clf.member_predict_proba(X)[0], atol=1e-6
    )
    clf, X, _ = fit(estimator=Drawn, n_estimators=2, aggregation="uniform_soup")
    first, second = (net.module_.module for net in clf.estimators_)
    first(torch.zeros(3, 8)), second(torch.zeros(4, 8))
    soup = mean_weights(clf.estimators_).module_.module
    for name in ("drawn", "weight"):
        want = (getattr(first, name) + getattr(second, name)) / 2
        torch.testing.assert_close(getattr(soup, name), want)


def accuracy(states, net, data):
    """Return the validation accuracy of the mean of some states."""
    module = mean_weights([net]).module_
    mean = {k: sum(s[k] for s in states) / len(states) for k in states[0]}
    module.load_state_dict(mean)
    with torch.no_grad():
        guess = module(torch.tensor(data.valid.X)).argmax(1).numpy()
    return np.mean(guess == data.valid.y)


@pytest.mark.parametrize("seed", rest_slow(range(3)))
def test_greedy_soup_equals_a_loop(seed):
    clf, X, y = fit(n_estimators=4, random_state=seed, max_epochs=2)
    data = split(clf, X, y)
    states = [net.module_.state_dict() for net in clf.estimators_]
    alone = [accuracy([s], clf.estimators_[0], data) for s in states]
    order = sorted(range(4), key=lambda i: -alone[i])
    chosen, best = [order[0]], alone[order[0]]
    for i in order[1:]:
        tried = accuracy([states[j] for j in (*chosen, i)], clf.estimators_[0], data)
        if tried >= best:
            chosen, best = [*chosen, i], tried
    soup, got = greedy_soup(clf.estimators_, data)
    assert got == chosen
    assert accuracy([soup.module_.state_dict()], soup, data) == best >= max(alone)


def test_best_member_is_the_one_with_the_best_validation_accuracy():
    clf, X, y = fit(aggregation="best_member", n_estimators=4)
    data = split(clf, X, y)
    scores = [
        np.mean(net.predict(data.valid.X) == data.valid.y) for net in clf.estimators_
    ]
    best = int(np.argmax(scores))
    assert clf.aggregation_.member_ == best
    want = clf.member_predict_proba(X)[best]
    np.testing.assert_allclose(clf.predict_proba(X), want, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_temperature_maximises_the_validation_likelihood(weighted):
    X, y = table()
    weight = np.random.default_rng(0).exponential(size=len(y)) ** 3
    weight = np.where(np.arange(len(y)) % 5, weight, 0) if weighted else np.ones(len(y))
    options = {"validation_fraction": 0.3, **FAST, "max_epochs": 30, "lr": 0.01}
    clf = DeepEnsembleClassifier(n_estimators=2, aggregation="temperature", **options)
    clf.fit(X, y, sample_weight=weight if weighted else None)
    mean = clf.member_decision_function(X).astype(float).mean(0)
    held = np.setdiff1d(np.arange(len(y)), clf.train_indices_)

    def nll(t):
        losses = -log_softmax(mean[held] / t, axis=1)[range(len(held)), y[held]]
        return np.average(losses, weights=weight[held])

    want = minimize_scalar(nll, bounds=(0.1, 20), method="bounded").x
    assert clf.aggregation_.temperature_ == pytest.approx(want, rel=1e-3)
    assert want > 1.2  # overconfident after training on noisy labels
    np.testing.assert_array_equal(clf.predict(X), mean.argmax(1))
    proba = softmax(mean / want, axis=1)
    np.testing.assert_allclose(clf.predict_proba(X), proba, atol=1e-3)


def test_temperature_is_one_if_all_validation_samples_are_right():
    X, y = table()
    X = X + 20 * np.eye(8, dtype=np.float32)[y]
    clf = DeepEnsembleClassifier(
        n_estimators=3,
        validation_fraction=0.3,
        aggregation="temperature",
        **{**FAST, "max_epochs": 20},
    )
    with pytest.warns(UndefinedMetricWarning, match="set no temperature"):
        clf.fit(X, y)
    assert clf.aggregation_.temperature_ == 1.0
    logits = clf.member_decision_function(X).astype(float).mean(0)
    np.testing.assert_allclose(clf.predict_proba(X), softmax(logits, axis=1))


@pytest.mark.parametrize("rule", NEED_VALIDATION)
@pytest.mark.parametrize("kind", [DeepEnsembleClassifier, Diversified])
def test_rules_that_need_validation_samples_raise_without_them(rule, kind):
    X, y = table(60)
    clf = kind(n_estimators=2, aggregation=rule, **FAST)
    with pytest.raises(InvalidInputError, match="validation_fraction"):
        clf.fit(X, y)


EVERY_RULE = [*AGGREGATIONS, lambda z: softmax(-z.sum(0), axis=1)]


@pytest.mark.parametrize(
    ("kind", "n_classes", "rule"),
    rest_slow(
        product([DeepEnsembleClassifier, Diversified], [2, 3], EVERY_RULE),
        [
            *((DeepEnsembleClassifier, 2, rule) for rule in EVERY_RULE),
            *((Diversified, 3, rule) for rule in ("mean_logit", "uniform_soup")),
        ],
    ),
)
def test_decision_function_agrees_with_predict_for_every_rule(kind, rule, n_classes):
    X, y = table(90)
    options = {"aggregation": rule, "validation_fraction": 0.3, "n_estimators": 3}
    clf = kind(**options, **FAST).fit(X, y % n_classes)
    decision = clf.decision_function(X)
    assert np.isfinite(decision).all()
    if n_classes == 2:
        assert decision.shape == (len(X),)
        decision = np.stack([-decision, decision], axis=1)
    np.testing.assert_array_equal(clf.classes_[decision.argmax(1)], clf.predict(X))


# Stages -----------------------------------------------------------------------------


ON_WEIGHTS = ["uniform_soup", "greedy_soup", "best_member"]
STAGED = [rule for rule in AGGREGATIONS if rule not in ON_WEIGHTS]
STAGED_DEEP = [(DeepEnsembleClassifier, rule) for rule in STAGED]
STAGED_JOINT = [(Diversified, rule) for rule in STAGED]
DIFFERENT = [
    (DeepEnsembleClassifier, "mean_logit"),
    (DeepEnsembleClassifier, "temperature"),
    (Diversified, "mean_logit"),
]


@pytest.mark.parametrize(
    ("kind", "rule"), rest_slow([*STAGED_DEEP, *STAGED_JOINT], DIFFERENT)
)
def test_last_stage_is_the_prediction_for_every_rule(kind, rule, tmp_path):
    if kind is DeepEnsembleClassifier:
        clf, X, _ = fit(aggregation=rule)
    else:
        X, y = table()
        options = {"n_estimators": 3, "validation_fraction": 0.3, **FAST}
        clf = kind(aggregation=rule, **options).fit(X, y)
    clf.save(tmp_path / "model")
    for each in (clf, pickle.loads(pickle.dumps(clf)), load(tmp_path / "model")):
        stages = list(each.staged_predict_proba(X))
        assert len(stages) == 3
        np.testing.assert_array_equal(stages[-1], clf.predict_proba(X))
        if rule != "temperature" and rule != "majority":
            first = clf.member_predict_proba(X)[0]
            np.testing.assert_allclose(stages[0], first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ON_WEIGHTS)
def test_staged_prediction_raises_for_rules_that_need_the_data(rule):
    clf, X, _ = fit(aggregation=rule, max_epochs=1)
    with pytest.raises(InvalidInputError, match="applied to the first members"):
        next(clf.staged_predict_proba(X))


# User-defined rules ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda z: z.mean(0), r"must return probabilities.*Row 0 is \[.*softmax"),
        (lambda z: z.mean(0)[:, 0], r"shape \(200, 3\) .*got shape \(200,\)"),
        (lambda z: softmax(z, -1), r"shape \(200, 3\) .*got shape \(., 200, 3\)"),
        (lambda z: softmax(z.mean(0), 0), "sum to one"),
        (lambda z: softmax(z.mean(0), 1) * [[2, -1, 0]], "non-negative"),
        (lambda z: softmax(z.mean(0), 1) * np.nan, r"Row 0 is \[nan"),
    ],
)
def test_function_that_does_not_return_probabilities_raises(rule, match):
    def valid_when_it_is_checked(z):
        return rule(z) if z.shape[1] == 200 else softmax(z.mean(0), 1)

    clf, X, _ = fit(aggregation=valid_when_it_is_checked, max_epochs=1)
    for predict in (clf.predict_proba, clf.predict, clf.decision_function):
        with pytest.raises(InvalidInputError, match=match):
            predict(X)
    with pytest.raises(InvalidInputError, match=match):
        next(clf.staged_predict_proba(X))
