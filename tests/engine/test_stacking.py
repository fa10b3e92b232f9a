"""Stacked members give the outputs of their modules; other modules are not stacked."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn
from torch.nn import functional as F

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.engine.stacked.network import (
    POINTWISE,
    StackedNetwork,
    stackable_layers,
)
from sklearn_sharpbalance.engine.stacked.passes import StackedPass
from sklearn_sharpbalance.members import (
    as_skorch_net,
    initial_state,
    member_net,
    score_member,
)
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.sharpness import FisherTraceScorer
from tests.cases import clusters
from tests.engine.test_called_layers import Layers, Wrapper

X, y = clusters()


class ScaledReLU(nn.ReLU):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((), 0.5))

    def forward(self, x):
        return super().forward(x) * self.scale


def chain(activation=nn.ReLU, middle=None):
    middle = middle or nn.Linear(8, 8)
    return nn.Sequential(
        nn.Linear(4, 8), activation(), middle, activation(), nn.Linear(8, 3)
    )


def one_activation():
    shared = nn.Tanh()
    return chain(lambda: shared)


def repeated_layer():
    shared = nn.Linear(8, 8)
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), shared, nn.Tanh(), shared, nn.Linear(8, 3)
    )


def repeated_block():
    shared = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(nn.Linear(4, 8), shared, shared, nn.Linear(8, 3))


def tied():
    module = chain()
    module[2].weight = nn.Parameter(torch.eye(8))
    twin = nn.Linear(8, 8)
    twin.weight = module[2].weight
    return nn.Sequential(*module[:3], nn.ReLU(), twin, nn.ReLU(), module[4])


def hooked():
    module = chain()
    module[2].register_forward_hook(lambda layer, args, output: 2 * output)
    return module


def hooked_module():
    module = chain()
    module.register_forward_pre_hook(lambda layer, args: (-args[0],))
    return module


def spectral():
    return chain(middle=nn.utils.spectral_norm(nn.Linear(8, 8)))


def reparametrised():
    return chain(middle=nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))


def custom_forward():
    module = chain()
    module[2].forward = lambda x: x
    return module


def flattened_elsewhere():
    return nn.Sequential(nn.Flatten(0, 1), nn.Unflatten(0, (-1, 4)), *chain())


def in_place_first():
    return nn.Sequential(nn.Identity(), nn.LeakyReLU(0.5, inplace=True), *chain())


def in_place_later():
    return chain(lambda: nn.LeakyReLU(0.5, inplace=True))


STACK = [chain, one_activation, in_place_later, Wrapper, Layers]
DO_NOT = [
    lambda: chain(ScaledReLU),
    repeated_layer,
    repeated_block,
    tied,
    hooked,
    hooked_module,
    spectral,
    reparametrised,
    custom_forward,
    flattened_elsewhere,
    in_place_first,
]


def assert_predicts_like_its_modules(clf):
    for net, proba in zip(clf.estimators_, clf.member_predict_proba(X), strict=True):
        with torch.no_grad():
            logits = net.module_.eval()(torch.tensor(X))
        np.testing.assert_allclose(proba, logits.softmax(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", STACK + DO_NOT)
def test_members_equal_those_of_skorch_and_predict_like_their_modules(module):
    settings = dict(n_estimators=2, max_epochs=2, random_state=0)
    auto, skorch = (
        DeepEnsembleClassifier(module, engine=engine, **settings).fit(X, y)
        for engine in ("auto", "skorch")
    )
    assert auto.engine_.name == ("stacked" if module in STACK else "skorch")
    for clf in (auto, skorch):
        assert_predicts_like_its_modules(clf)
    for a, b in zip(auto.estimators_, skorch.estimators_, strict=True):
        ours, theirs = a.module_.state_dict(), b.module_.state_dict()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("module", [in_place_first, in_place_later, Wrapper])
def test_joint_members_predict_like_their_modules(module):
    """Joint members share their batches, which no member may change."""
    settings = dict(n_estimators=2, max_epochs=2, random_state=0)
    clf = DiversifiedEnsembleClassifier(module, **settings).fit(X, y)
    assert clf.engine_.name == ("stacked" if module in STACK else "modules")
    assert_predicts_like_its_modules(clf)


@pytest.mark.parametrize("flatten", [nn.Flatten(), nn.Flatten(2), nn.Flatten(0)])
def test_only_the_default_flatten_is_stacked(flatten):
    layers = stackable_layers(nn.Sequential(flatten, nn.Linear(4, 3)))
    assert (layers is not None) == (flatten.start_dim == 1)


class StopsAbove(Callback):
    """Stop members with a large loss, and count calls of on_train_end."""

    def __init__(self, loss):
        self.loss = loss

    def on_epoch_end(self, net, **kwargs):
        if net.history[-1]["train_loss"] > self.loss:
            raise KeyboardInterrupt

    def on_train_end(self, net, **kwargs):
        net.history.record("n_ends", net.history[-1].get("n_ends", 0) + 1)


@pytest.mark.parametrize("engine", ["stacked", "skorch"])
def test_on_train_end_is_called_once_for_a_stopped_member(engine):
    """The other members train through several segments."""
    settings = dict(n_estimators=2, engine=engine, random_state=0)
    short = DeepEnsembleClassifier(chain, max_epochs=1, **settings).fit(X, y)
    losses = [history[0]["train_loss"] for history in short.history_]
    clf = DeepEnsembleClassifier(
        chain, max_epochs=10, callbacks=[StopsAbove(np.mean(losses))], **settings
    )
    clf.fit(X, y)
    assert max(map(len, clf.history_)) == 10
    stopped = clf.history_[int(np.argmax(losses))]
    assert len(stopped) == 1
    assert stopped[-1]["n_ends"] == 1


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.NAdam])
def test_step_counts_grow_only_for_members_that_train(optimizer):
    """Corrections by the number of steps; one member stops early.

    Adam's count grows with the steps, and NAdam's product falls, too.
    """
    settings = dict(n_estimators=2, optimizer=optimizer, lr=0.01, random_state=0)
    short = DeepEnsembleClassifier(chain, max_epochs=1, **settings).fit(X, y)
    losses = [history[0]["train_loss"] for history in short.history_]
    stop = StopsAbove(np.mean(losses))
    stacked, skorch = (
        DeepEnsembleClassifier(
            chain, max_epochs=12, engine=engine, callbacks=[stop], **settings
        ).fit(X, y)
        for engine in ("stacked", "skorch")
    )
    assert sorted(map(len, stacked.history_)) == [1, 12]
    np.testing.assert_allclose(
        stacked.member_predict_proba(X), skorch.member_predict_proba(X), atol=1e-5
    )
    for pair in zip(stacked.estimators_, skorch.estimators_, strict=True):
        ours, theirs = (net.optimizer_.state_dict()["state"] for net in pair)
        assert theirs[0]["step"] > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


ACTIVATIONS = [
    *(kind() for kind in POINTWISE),
    nn.ReLU(inplace=True),
    nn.Sequential(nn.ELU(inplace=True), nn.ReLU()),
]


def stacked_members(activation, bias=True, device="cpu"):
    """Return three networks of two Linear layers, and their stack."""
    torch.manual_seed(0)
    members = []
    for _ in range(3):
        first, second = nn.Linear(4, 8, bias=bias), nn.Linear(8, 3)
        members.append(nn.Sequential(nn.Flatten(), first, activation, second))
    states = [member.state_dict() for member in members]
    network = StackedNetwork(stackable_layers(members[0]), states, device)
    return [member.to(device) for member in members], network


def batch_of(n, device="cpu"):
    """Return samples, labels and shares of three members."""
    x = torch.randn(3, n, 4, device=device)
    return x, torch.randint(3, (3, n), device=device), torch.rand(3, n, device=device)


def gradients_by_autograd(members, network, batch, label_smoothing=0.0):
    """Return the losses (3,) and the gradients (3, P) of modules."""
    losses, rows = [], []
    xs, ys, shares = batch
    for member, x, y, share in zip(members, xs, ys, shares, strict=True):
        each = F.cross_entropy(
            member(x).float(), y, reduction="none", label_smoothing=label_smoothing
        )
        losses.append((each * share).sum())
        rows.append(network.row(torch.autograd.grad(losses[-1], member.parameters())))
    return torch.stack(losses).detach(), torch.stack(rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_stacked_pass_equals_autograd(activation, label_smoothing, bias, device):
    """Losses and gradients of a batch in one part."""
    members, network = stacked_members(activation, bias=bias, device=device)
    x, y, share = batch_of(10, device)
    passes = StackedPass(network, label_smoothing)
    for _ in range(2):  # the second pass overwrites the gradient of the first
        losses = passes.loss(x, y, share)
        passes.backward()
    want = gradients_by_autograd(members, network, (x, y, share), label_smoothing)
    torch.testing.assert_close((losses, network.weights.grad), want)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_members_are_scored_together_as_alone(label_smoothing, bias):
    """Fisher traces of all members in one pass, against one autograd graph each."""
    module = chain(nn.Tanh, middle=nn.Linear(8, 8, bias=bias))
    data = TrainingData(X, y, np.linspace(0.1, 1, 60, dtype=np.float32))
    kwargs = {"criterion__label_smoothing": label_smoothing}
    net = as_skorch_net(module, (4,), 3, kwargs)
    net = member_net(net, 3, sam=SAM, device="cpu")
    members = [initial_state(net, i, seed=i) for i in range(3)]
    engine = StackedEngine()
    want = [score_member(net, m, data, FisherTraceScorer("loop")) for m in members]
    for scorer in (FisherTraceScorer(), FisherTraceScorer(chunk_size=7)):
        assert engine.scores_together(net, scorer, "float32")
        found = engine.score(net, members, data, scorer, "float32")
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_stacked_pass_in_half_precision(device):
    members, network = stacked_members(nn.Tanh(), bias=True, device=device)
    batch = batch_of(10, device)
    passes = StackedPass(network, label_smoothing=0.1, dtype=torch.bfloat16)
    losses = passes.loss(*batch)
    passes.backward()
    want = gradients_by_autograd(members, network, batch, 0.1)
    found = losses, network.weights.grad
    torch.testing.assert_close(found, want, rtol=0.05, atol=0.05)


def test_rows_are_aligned_and_give_back_the_weights():
    """Entries between the weights of a row stay zero."""
    members, network = stacked_members(nn.ReLU())
    views = network.views(network.weights.detach())
    for name, view in views.items():
        assert view.storage_offset() % 16 == 0
        for i, member in enumerate(members):
            torch.testing.assert_close(
                view[i], member.state_dict()[name], rtol=0, atol=0
            )
    for view in views.values():
        view.zero_()
    assert not network.weights.any()


def test_states_may_be_on_another_device():
    """On a GPU the state of the first member is there, those of the others are not."""
    module = chain()
    states = [module.state_dict(), chain().to("meta").state_dict()]
    network = StackedNetwork(stackable_layers(module), states, torch.device("meta"))
    assert network.weights.device.type == "meta"
