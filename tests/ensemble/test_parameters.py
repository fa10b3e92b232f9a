"""The parameter ``estimator``, and nested parameters."""

import copy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.optim import ASAM, MomentumSAM
from sklearn_sharpbalance.selection import SharpestSelector
from sklearn_sharpbalance.sharpness import LossRiseScorer
from tests.cases import table, weights

N = 48
SMALL = {
    "n_estimators": 2,
    "max_epochs": 3,
    "batch_size": 16,
    "random_state": 0,
    "device": "cpu",
}


class Wide(nn.Module):
    """One hidden layer; ``softmax`` for skorch's default criterion."""

    def __init__(self, n_features, n_classes, width=8, softmax=False):
        super().__init__()
        self.hidden = nn.Linear(n_features, width)
        self.head = nn.Linear(width, n_classes)
        self.end = nn.Softmax(dim=1) if softmax else nn.Identity()

    def forward(self, X):
        return self.end(self.head(torch.relu(self.hidden(X))))


def make_wide(n_features, n_classes, width=8):
    return Wide(n_features, n_classes, width)


@pytest.mark.parametrize("estimator", [Wide, make_wide])
def test_sizes_are_passed_to_a_class_or_a_function(estimator):
    X, y = table(N, 4)
    clf = SharpBalance(estimator, estimator__module__width=5, **SMALL).fit(X, y)
    for net in clf.estimators_:
        assert net.module_.module.hidden.weight.shape == (5, 4)
        assert net.module_.module.head.weight.shape == (3, 5)
    assert not weights(clf, 0).equal(weights(clf, 1))


def test_an_instance_is_a_prototype():
    X, y = table(N, 4)
    prototype = Wide(4, 3, width=6)
    before = copy.deepcopy(prototype.state_dict())
    options = {**SMALL, "lr": 1e-12}
    clf = SharpBalance(prototype, **options).fit(X, y)
    members = [weights(clf, i) for i in range(2)]
    start = torch.cat([p.detach().flatten() for p in prototype.parameters()])
    # Before the weights stand the center and scale of the four columns.
    assert len({tuple(w[-len(start) :].tolist()) for w in (*members, start)}) == 3
    for key, value in prototype.state_dict().items():
        assert value.equal(before[key])
    assert weights(SharpBalance(prototype, **options).fit(X, y)).equal(members[0])


class Counter(Callback):
    """Count epochs in the history."""

    def on_epoch_end(self, net, **kwargs):
        net.history.record("counted", len(net.history))


def configured(**options):
    defaults = {"criterion": nn.CrossEntropyLoss, "module__n_features": 4}
    return NeuralNetClassifier(Wide, **{**defaults, "module__n_classes": 3, **options})


def test_configured_net_keeps_settings_that_the_ensemble_does_not_set():
    X, y = table(N, 4)
    net = configured(
        lr=0.02,
        max_epochs=2,
        batch_size=24,
        optimizer=torch.optim.Adam,
        optimizer__betas=(0.7, 0.8),
        callbacks=[Counter()],
        module__width=7,
    )
    clf = SharpBalance(net, n_estimators=2, random_state=0, device="cpu").fit(X, y)
    for member, history in zip(clf.estimators_, clf.history_):
        base = member.optimizer_.base_optimizer
        assert isinstance(base, torch.optim.Adam)
        assert base.param_groups[0]["betas"] == (0.7, 0.8)
        assert [row["lr"] for row in history] == [0.02, 0.02]  # constant learning rate
        assert [row["counted"] for row in history] == [1, 2]
        assert member.module_.module.hidden.out_features == 7
    assert clf.n_iter_ == 2
    assert not net.initialized_


def test_net_of_probabilities_equals_net_of_logits():
    """By skorch's convention NLLLoss takes probabilities."""
    X, y = table(N, 4)
    with_softmax = configured(criterion=nn.NLLLoss, module__softmax=True)
    one = SharpBalance(with_softmax, **SMALL).fit(X, y)
    other = SharpBalance(configured(), **SMALL).fit(X, y)
    torch.testing.assert_close(weights(one), weights(other), atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(one.sharpness_, other.sharpness_, rtol=1e-2, atol=1e-6)


def test_a_sharpness_aware_optimizer_of_the_net_is_used():
    X, y = table(N, 4)
    net = configured(optimizer=ASAM, optimizer__eta=0.1, lr=0.05)
    clf = SharpBalance(net, **SMALL).fit(X, y)
    assert type(clf.estimators_[0].optimizer_) is ASAM
    assert clf.estimators_[0].optimizer_.param_groups[0]["rho"] == 0.05
    net = configured(optimizer=MomentumSAM, optimizer__momentum=0.9, lr=0.05)
    assert SharpBalance(net, **SMALL).fit(X, y).settings_["rho"] == 0.3


# Nested parameters ------------------------------------------------------------------

NESTED = {
    "estimator__module__width": 5,
    "sharpness__chunk_size": 7,
    "selection__flat_ratio": 0.25,
}


def test_nested_parameters_of_parts_given_by_name():
    X, y = table(N, 4)
    clf = SharpBalance(Wide, sharpness="loss", selection="sharpest", **NESTED, **SMALL)
    assert {name: clf.get_params()[name] for name in NESTED} == NESTED
    clf.fit(X, y)
    assert clf.estimators_[0].module_.module.hidden.out_features == 5
    # A quarter of the samples of one other member.
    assert clf.sam_masks_.sum(axis=1).tolist() == [12, 12]


def test_clone_keeps_nested_parameters():
    clf = SharpBalance(Wide, **NESTED, **SMALL)
    twin = clone(clf)
    assert twin.get_params() == clf.get_params()
    twin.set_params(selection__flat_ratio=0.5)
    assert clf.get_params()["selection__flat_ratio"] == 0.25


def test_nested_parameters_of_parts_given_as_objects():
    scorer, selector = LossRiseScorer(rho=0.1), SharpestSelector(flat_ratio=0.3)
    clf = SharpBalance(sharpness=scorer, selection=selector)
    assert clf.get_params()["sharpness__rho"] == 0.1
    clf.set_params(sharpness__rho=0.2, selection__flat_ratio=0.6)
    assert (scorer.rho, selector.flat_ratio) == (0.2, 0.6)
    twin = clone(clf)
    assert twin.sharpness is not scorer
    assert twin.sharpness.rho == 0.2


def test_flat_ratio_does_not_change_a_selector_object():
    """``flat_ratio`` applies to rules that are given by name."""
    X, y = table(N, 4)
    by_name = SharpBalance(selection="sharpest", flat_ratio=0.5, **SMALL)
    assert by_name.fit(X, y).sam_masks_.sum(axis=1).tolist() == [24, 24]
    rule = SharpestSelector(flat_ratio=0.25)
    by_object = SharpBalance(selection=rule, flat_ratio=0.5, **SMALL)
    assert by_object.fit(X, y).sam_masks_.sum(axis=1).tolist() == [12, 12]


def test_set_params_of_a_part_and_its_parameters():
    clf = SharpBalance(sharpness="loss")
    scorer = LossRiseScorer()
    clf.set_params(sharpness=scorer, sharpness__rho=0.7)
    assert scorer.rho == 0.7
    clf.set_params(sharpness="loss_rise", sharpness__rho=0.9)
    assert clf.get_params()["sharpness__rho"] == 0.9
    assert scorer.rho == 0.7


def test_object_that_replaces_a_name_keeps_its_parameters():
    X, y = table(N, 4)
    clf = SharpBalance(selection__flat_ratio=0.25, **SMALL)
    clf.set_params(selection=SharpestSelector(flat_ratio=0.5))
    assert clf.get_params()["selection__flat_ratio"] == 0.5
    assert clf.fit(X, y).sam_masks_.sum(axis=1).tolist() == [24, 24]
    twin = clone(clf).set_params(selection__flat_ratio=0.75)
    assert twin.selection.flat_ratio == 0.75


@pytest.mark.parametrize("name", ["selction__flat_ratio", "typo"])
def test_unknown_parameter_raises(name):
    with pytest.raises(TypeError, match=f"unexpected parameter '{name}'"):
        SharpBalance(**{name: 1})
    with pytest.raises(ValueError, match="Invalid parameter"):
        SharpBalance().set_params(**{name: 1})
