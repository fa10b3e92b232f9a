"""Reasons why an engine does not support some members."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.graph.engine import module_refusal
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.optim import SAM

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
y = np.arange(40) % 3


def fitted(estimator=None, engine="auto", **params):
    nested = {key: params.pop(key) for key in list(params) if "__" in key}
    settings = {"max_epochs": 3, "batch_size": 16, "random_state": 0, **params}
    clf = SharpBalance(estimator, 2, engine=engine, **settings).set_params(**nested)
    return clf.fit(X, y)


def chain(*middle):
    return nn.Sequential(nn.Linear(4, 5), *middle, nn.ReLU(), nn.Linear(5, 3))


def frozen():
    module = chain()
    module[0].requires_grad_(False)
    return module


def hooked():
    module = chain()
    module[1].register_forward_hook(lambda layer, args, output: -output)
    return module


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 3))


def reads_its_weights():
    module = chain()
    assert module[0].weight.abs().sum().item() > 0  # "meta" tensors have no values
    return module


class CustomForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = chain()

    def forward(self, X):
        return self.inner(2 * X)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (lambda: chain(nn.Dropout()), r"Dropout \(1\) is neither"),
        (lambda: chain(nn.LayerNorm(5)), r"LayerNorm \(1\) is neither"),
        (CustomForward, "CustomForward is not a chain .*: it does more than to call"),
        (frozen, "frozen is not a chain .*: some of its weights are frozen"),
        (shared, "its layers share weights"),
        (hooked, r"ReLU \(1\) has hooks"),
        (lambda: nn.Sequential(nn.ELU(inplace=True), nn.Linear(4, 3)), "in place"),
        (
            lambda: nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(4, 3)),
            "Flatten",
        ),
        (reads_its_weights, "cannot be built on the meta device"),
    ],
)
def test_reason_names_the_unsupported_part(factory, reason):
    with pytest.raises(ValueError, match=reason):
        fitted(factory, engine="stacked")


def test_unknown_optimizer_is_named():
    reason = fitted(optimizer=torch.optim.Adadelta).engine_.reason
    assert "Adadelta is not among the optimizers known" in reason


@pytest.mark.parametrize(
    "params",
    [
        {"optimizer": partial(torch.optim.SGD, momentum=0.5)},
        {
            "optimizer": torch.optim.RMSprop,
            "sam": "gsam",
            "lr": 0.01,
            "estimator__optimizer__alpha": 0.5,  # GSAM has this option too
        },
        {"optimizer": SAM},
    ],
    ids=["partial", "bound", "SAM"],
)
def test_known_optimizers_are_stacked_in_every_form(params):
    stacked, skorch = fitted(**params), fitted(engine="skorch", **params)
    assert stacked.engine_.name == "stacked"
    np.testing.assert_allclose(
        stacked.member_predict_proba(X), skorch.member_predict_proba(X), atol=1e-5
    )


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention draws random"),
        (nn.MultiheadAttention(4, 2), None),
        (nn.Dropout(0.1), "Dropout draws random numbers"),
        (nn.Dropout(0.0), None),
        (nn.LSTM(4, 4, 2, dropout=0.1), "LSTM draws random numbers"),
        (nn.GRU(4, 4), "GRU is not among the layers known"),
        (nn.RReLU(), "RReLU draws random numbers"),
    ],
)
def test_graph_engine_refuses_random_layers(layer, reason):
    net = as_skorch_net(lambda: chain(layer), (4,), 3)
    member_net(net, 3, sam=SAM, device="cpu")
    refused = module_refusal(net, TrainingData(X, y))
    assert refused is None if reason is None else reason in refused


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (partial(torch.optim.SGD, momentum=0.9, dampening=0.5), "dampening"),
        (torch.optim.Adagrad, "Adagrad reads"),
    ],
)
def test_graph_engine_refuses_optimizers(optimizer, reason):
    net = as_skorch_net(None, (4,), 3)
    member_net(net, 3, sam=SAM, device="cpu", settings={"optimizer": optimizer})
    assert reason in module_refusal(net, TrainingData(X, y))


class Layerwise(SAM):
    """Normalise by layer, which would treat stacked members as one."""

    def _direction(self, bucket, grad_scale):
        directions = [g / g.norm() for g in bucket.grads]
        return directions, directions


def test_custom_sharpness_aware_steps_are_not_stacked():
    clf = fitted(sam=Layerwise, rho=0.5)
    assert "Layerwise may treat stacked members as one" in clf.engine_.reason
    with pytest.raises(ValueError, match=r"engine='stacked' .* as one"):
        fitted(sam=Layerwise, engine="stacked")
