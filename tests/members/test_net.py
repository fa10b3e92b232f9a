"""The net of a member for every type of ``estimator``."""

from functools import partial

import pytest
from skorch import NeuralNetClassifier
from skorch.callbacks import EpochScoring, EpochTimer, LRScheduler
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.optim import SAM


class Sized(nn.Module):
    """A module with other names for its sizes."""

    def __init__(self, input_dim, num_classes, width=3):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_dim, width), nn.ReLU(), nn.Linear(width, num_classes)
        )

    def forward(self, X):
        return self.layers(X)


def built(net, **options):
    return member_net(net, 3, sam=SAM, device="cpu", **options).initialize()


def test_sizes_are_passed_by_any_common_name():
    net = built(as_skorch_net(Sized, (4,), 3, {"module__width": 5}))
    assert net.module_.module.layers[0].weight.shape == (5, 4)
    assert net.module_.module.layers[2].weight.shape == (3, 5)


def test_given_sizes_are_kept():
    net = as_skorch_net(Sized, (4,), 3, {"module__input_dim": 9})
    assert built(net).module_.module.layers[0].in_features == 9
    net = built(as_skorch_net(partial(Sized, input_dim=9), (4,), 3))
    assert net.module_.module.layers[0].in_features == 9
    assert net.module_.module.layers[2].out_features == 3


def test_arguments_for_an_instance_raise():
    network = Sized(4, 3)
    assert as_skorch_net(network, (4,), 3).module is network
    message = r"module__width is not used: .* an instance of Sized\. Pass its class"
    with pytest.raises(InvalidInputError, match=message):
        as_skorch_net(network, (4,), 3, {"module__width": 5})
    net = NeuralNetClassifier(network, module__width=5)
    with pytest.raises(InvalidInputError, match=message):
        as_skorch_net(net, (4,), 3)


def configured(**options):
    return NeuralNetClassifier(
        Sized,
        module__input_dim=4,
        module__num_classes=3,
        criterion=nn.CrossEntropyLoss,
        **options,
    )


def names(net):
    return [name for name, _ in net.callbacks_]


def test_callbacks_of_the_net_and_of_the_ensemble_are_both_kept():
    mine = [("schedule", LRScheduler()), ("f1", EpochScoring("f1_macro", name="f1"))]
    given = configured(callbacks=mine)
    more = [("timer", EpochTimer())]
    net = built(as_skorch_net(given, (4,), 3), callbacks=more)
    assert names(net) == ["schedule", "f1", "timer"]
    assert len(given.callbacks) == 2


def test_disabled_callbacks_stay_disabled():
    assert names(built(as_skorch_net(configured(callbacks="disable"), (4,), 3))) == []
    more = [("timer", EpochTimer())]
    net = as_skorch_net(configured(callbacks="disable"), (4,), 3)
    assert names(built(net, callbacks=more)) == ["timer"]


def test_nested_parameters_of_callbacks():
    given = configured(callbacks=[("schedule", LRScheduler())])
    nested = {"callbacks__schedule__policy": "StepLR"}
    net = built(as_skorch_net(given, (4,), 3, nested))
    assert dict(net.callbacks_)["schedule"].policy == "StepLR"


class Wrapping(nn.Module):
    """Has a submodule named ``module``, like the wrapper of members."""

    def __init__(self):
        super().__init__()
        self.module, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, X):
        return self.head(self.module(X))


def test_parameter_groups_of_a_submodule_named_module():
    groups = [("module.bias", {"weight_decay": 0.5}), ("head.*", {"lr": 0.0})]
    net = as_skorch_net(Wrapping, (4,), 3, {"optimizer__param_groups": groups})
    net = built(net)
    inner = net.module_.module
    decayed, still, others = (g["params"] for g in net.optimizer_.param_groups)
    assert [id(p) for p in decayed] == [id(inner.module.bias)]
    assert {id(p) for p in still} == {id(p) for p in inner.head.parameters()}
    assert [id(p) for p in others] == [id(inner.module.weight)]
