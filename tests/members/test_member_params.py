"""Members with different settings.

The reference is an ensemble in which *all* members have the settings of one member:
its member at that position must be equal bit for bit.
"""

import pickle
from itertools import product

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_sharpbalance
from sklearn_sharpbalance import MLP, DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.skorch_engine import SkorchRun
from sklearn_sharpbalance.exceptions import (
    CheckpointMismatchError,
    InvalidInputError,
    ModelFileError,
    UnsupportedEngineError,
)
from sklearn_sharpbalance.members import (
    as_skorch_net,
    initial_state,
    member_net,
)
from sklearn_sharpbalance.members.member_params import give_settings
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.training.checkpoint import CheckpointFolder
from tests.cases import rest_slow
from tests.members.cases import segment

FAST = {
    "max_epochs": 4,
    "batch_size": 30,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (8,),
    "optimizer": torch.optim.SGD,
    "lr": 0.1,
}
APART = [
    {"lr": 0.02, "optimizer__weight_decay": 0.01},
    {"module__hidden": (5, 4), "module__dropout": 0.2},
    {"criterion__label_smoothing": 0.2, "optimizer__momentum": 0.5},
]


def table(n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.8)


def as_common(settings):
    """Return the settings of one member as parameters of an ensemble."""
    return {
        name if name == "lr" else f"estimator__{name}": value
        for name, value in settings.items()
    }


def states(clf):
    return [net.module_.state_dict() for net in clf.estimators_]


def assert_equal_states(got, want):
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert torch.equal(got[key], value), key


def assert_bitwise(one, other):
    for got, want in zip(states(one), states(other), strict=True):
        assert_equal_states(got, want)
    assert one.member_params_ == other.member_params_


# Settings of members ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (DeepEnsembleClassifier, {}),
        pytest.param(
            DeepEnsembleClassifier,
            {"weight_averaging": "uniform"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            DeepEnsembleClassifier,
            {"prune": 0.3, "validation_fraction": 0.3},
            marks=pytest.mark.slow,
        ),
        (SharpBalance, {"selection": "all", "rho": [0.1, 0.2, 0.05]}),
    ],
)
def test_member_equals_that_of_an_ensemble_with_common_settings(kind, params):
    X, y = table()
    params = {"engine": "skorch", **FAST, "max_epochs": 3, **params}
    clf = kind(member_params=APART, **params).fit(X, y)
    assert clf.member_params_ == APART
    for i, settings in enumerate(APART):
        alike = kind(**{**params, **as_common(settings)}).fit(X, y)
        assert_equal_states(states(clf)[i], states(alike)[i])
        keys = ("train_loss", "lr")
        rows = [[[r[k] for k in keys] for r in c.history_[i]] for c in (clf, alike)]
        assert rows[0] == rows[1]
        proba = [c.member_predict_proba(X)[i] for c in (clf, alike)]
        np.testing.assert_allclose(*proba, atol=1e-6)


def test_members_with_different_activations_predict_one_by_one():
    """Weights of equal shapes can be stacked, activations cannot."""
    X, y = table()
    apart = [{"module__activation": name} for name in ("relu", "tanh", "identity")]
    clf = DeepEnsembleClassifier(member_params=apart, **FAST).fit(X, y)
    probas = clf.member_predict_proba(X)
    for net, proba in zip(clf.estimators_, probas):
        want = net.module_.eval()(torch.tensor(X)).softmax(1).detach()
        np.testing.assert_allclose(proba, want, atol=1e-6)
    logits = np.log(probas).mean(0)
    want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(clf.predict_proba(X), want, atol=1e-6)


def test_empty_settings_change_nothing():
    X, y = table()
    clf = DeepEnsembleClassifier(**FAST).fit(X, y)
    assert clf.member_params_ == [{}, {}, {}]
    empty = DeepEnsembleClassifier(member_params=[{}, {}, {}], **FAST).fit(X, y)
    assert_bitwise(empty, clf)
    assert empty.engine_.name == "stacked"


# Engines ----------------------------------------------------------------------------


def test_engines_give_the_reason_against_members_that_differ():
    X, y = table()
    apart = [{"lr": 0.1}, {"lr": 0.2, "module__dropout": 0.1}, {}]
    clf = DeepEnsembleClassifier(member_params=apart, **FAST)
    assert clf.fit(X, y).engine_.name == "skorch"
    reason = "members differ in module__dropout, and share one step"
    assert f"not stacked: {reason}" in clf.engine_.reason
    with pytest.raises(UnsupportedEngineError, match=f"engine='stacked'.*{reason}"):
        clf.set_params(engine="stacked").fit(X, y)


def test_members_that_do_not_differ_are_stacked():
    X, y = table()
    same = {"lr": 0.05, "module__hidden": (7,)}
    clf = DeepEnsembleClassifier(member_params=[same] * 3, **FAST).fit(X, y)
    plain = DeepEnsembleClassifier(**{**FAST, **as_common(same)}).fit(X, y)
    assert clf.engine_.name == plain.engine_.name == "stacked"
    for got, want in zip(states(clf), states(plain)):
        assert_equal_states(got, want)


RATES = [
    {"lr": 0.02, "optimizer__weight_decay": 0.3},
    {"lr": 0.1},
    {"lr": 0.003, "optimizer__weight_decay": 0.0},
]
BASES = {
    "SGD": {"estimator__optimizer__nesterov": True},
    "plain SGD": {"estimator__optimizer__momentum": 0.0},
    "Adam": {"optimizer": torch.optim.Adam},
    "AdamW": {"optimizer": torch.optim.AdamW},
}


@pytest.mark.parametrize(
    ("base", "sam"),
    rest_slow(
        product(BASES, ["sam", "look_sam"]), [("SGD", "sam"), ("AdamW", "look_sam")]
    ),
)
def test_stacked_members_have_their_own_rates_and_weight_decays(base, sam):
    X, y = table()
    options = {"member_params": RATES, "sam": sam, **FAST}
    options |= BASES[base] | {"prune": 0.2}
    stacked = SharpBalance(**options).fit(X, y)
    assert stacked.engine_.name == "stacked"
    alone = SharpBalance(**options, engine="skorch").fit(X, y)
    for got, want in zip(stacked.estimators_, alone.estimators_):
        state = want.module_.state_dict()
        for name, value in got.module_.state_dict().items():
            torch.testing.assert_close(value, state[name], atol=2e-5, rtol=2e-5)
        rates = [got.history[:, "lr"], want.history[:, "lr"]]
        assert rates[0] == pytest.approx(rates[1], rel=1e-6)
        groups = [net.optimizer_.param_groups[0] for net in (got, want)]
        assert groups[0]["lr"] == pytest.approx(groups[1]["lr"])
        assert groups[0]["weight_decay"] == groups[1]["weight_decay"]


def shared_net(settings, **params):
    net = as_skorch_net(MLP, (4,), 3, {"module__hidden": (8,)})
    net = member_net(net, 3, sam=SAM, device=params.pop("device", "cpu"))
    return give_settings(net, settings)


def test_graph_steps_use_the_settings_of_each_member():
    """The captured step runs the same code; on a CPU it is not captured."""
    X, y = table()
    data = TrainingData(X, y.astype(np.int64))
    apart = [{"lr": 0.02, "optimizer__weight_decay": 0.1}, {"module__hidden": (5, 4)}]
    net = shared_net(apart)
    masks = np.random.default_rng(0).random((2, 60)) < 0.5
    phase = segment(
        3, sizes=batch_sizes(masks, 16), rho=(0.05, 0.2), lr_schedule=cosine
    )
    first = [initial_state(net, i, seed) for i, seed in enumerate((3, 4))]
    want, got = (
        engine.open(net, first, data).train(phase, masks)
        for engine in (SkorchEngine(), GraphEngine())
    )
    for one, other in zip(got, want):
        for key, value in other.module.items():
            torch.testing.assert_close(one.module[key], value, atol=2e-5, rtol=2e-5)
        rates = [[row["lr"] for row in state.history] for state in (one, other)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-5)
    assert want[0].history[0]["lr"] != want[1].history[0]["lr"]


def test_graph_engine_checks_every_member():
    X, y = table()
    data = TrainingData(X, y.astype(np.int64))
    settings = segment(1, batch_size=16, rho=(0.0, 0.0), lr_schedule=cosine)

    def refusal(apart):
        return GraphEngine.refusal(shared_net(apart, device="cuda"), data, settings)

    assert refusal([{"lr": 0.1}, {"module__hidden": (3,)}]) is None
    assert "Dropout draws" in refusal([{}, {"module__dropout": 0.1}])
    assert "dampening" in refusal([{}, {"optimizer__dampening": 0.1}])


# Checkpoints, files and caching -----------------------------------------------------


def test_interrupted_fit_resumes(tmp_path, monkeypatch, every_epoch):
    X, y = table()
    options = {"member_params": APART}
    options |= {**FAST, "checkpoint_dir": tmp_path}

    class KilledError(Exception):
        pass

    write = CheckpointFolder.write

    def write_and_raise(self, epoch, *args, **kwargs):
        write(self, epoch, *args, **kwargs)
        if epoch == 3:
            raise KilledError

    monkeypatch.setattr(CheckpointFolder, "write", write_and_raise)
    with pytest.raises(KilledError):
        SharpBalance(**options).fit(X, y)
    monkeypatch.undo()
    resumed = SharpBalance(**options).fit(X, y)
    assert [len(history) for history in resumed.history_] == [4, 4, 4]
    again = SharpBalance(**options).fit(X, y)  # reads the finished fit
    assert_bitwise(again, resumed)
    whole = SharpBalance(**{**options, "checkpoint_dir": None}).fit(X, y)
    assert_bitwise(resumed, whole)
    other = SharpBalance(**{**options, "member_params": [{}, {}, {"lr": 0.3}]})
    with pytest.raises(CheckpointMismatchError, match="member_params was"):
        other.fit(X, y)


def test_ensemble_is_restored_from_a_pickle_and_a_file(tmp_path):
    X, y = table()
    clf = SharpBalance(member_params=APART, **FAST).fit(X, y)
    clf.save(tmp_path / "model")
    twins = [
        pickle.loads(pickle.dumps(clf)),
        sklearn_sharpbalance.load(tmp_path / "model"),
    ]
    clf.partial_fit(X, y)
    for twin in twins:
        assert_bitwise(twin.partial_fit(X, y), clf)
        np.testing.assert_array_equal(twin.predict_proba(X), clf.predict_proba(X))


def test_file_with_other_shapes_or_names_raises(tmp_path):
    X, y = table()
    clf = DeepEnsembleClassifier(member_params=APART, **FAST).fit(X, y)
    for wrong, message in (
        ({"module__hidden": (500_000, 500_000)}, "weights are not those of MLP"),
        ({"criterion": nn.Linear}, "'criterion' cannot be a setting of one member"),
        ({"module__module": nn.Linear}, "'module__module' cannot be a setting"),
    ):
        clf.net_.set_params(module__member_params=({}, wrong, {}))
        clf.save(tmp_path / "model")
        with pytest.raises((ModelFileError, InvalidInputError), match=message):
            sklearn_sharpbalance.load(tmp_path / "model")


def test_warm_start_requires_weights_of_the_same_shapes():
    X, y = table()
    clf = DeepEnsembleClassifier(member_params=APART, warm_start=True, **FAST)
    want = clf.fit(X, y).predict_proba(X)
    still = [{**settings, "lr": 1e-12} for settings in APART]
    clf.set_params(member_params=still).fit(X, y)
    np.testing.assert_allclose(clf.predict_proba(X), want, atol=1e-5)
    with pytest.raises(InvalidInputError, match="warm_start=True starts from"):
        clf.set_params(member_params=APART[1:] + APART[:1]).fit(X, y)


# Soups ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["uniform_soup", "greedy_soup"])
def test_soups_of_different_networks_raise_before_training(rule, monkeypatch):
    X, y = table()
    monkeypatch.setattr(SkorchRun, "train", None)
    clf = DeepEnsembleClassifier(
        member_params=APART, aggregation=rule, validation_fraction=0.2, **FAST
    )
    with pytest.raises(
        InvalidInputError, match=r"different networks: module__dropout, module__hidden"
    ):
        clf.fit(X, y)


# Errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member_params", "message"),
    [
        ([{}, {}], "has 2 dictionaries for n_estimators=3 members. Pass one for each"),
        ([{}, {}, 0.1], r"member_params\[2\] must be a dictionary, got 0.1"),
        ({"lr": [0.1, 0.2]}, "'member_params' parameter"),
        ([{}, {"lr": -1.0}, {}], "lr in member_params must be .* than 0, got -1.0"),
        ([{}, {"lr": "big"}, {}], "lr in member_params must be .* got 'big'"),
        ([{"rho": 0.1}] * 3, r"'rho' .* cannot be .*One radius per member is rho=\["),
        ([{"batch_size": 8}] * 3, "'batch_size' .* cannot be .* Pass lr, or an arg"),
        ([{"criterion__weight": 1}] * 3, "'criterion__weight' in member_params cannot"),
        ([{"optimizer__lr": 1}] * 3, "'optimizer__lr' in member_params cannot"),
        ([{"optimizer__rho": 1}] * 3, "'optimizer__rho' in member_params cannot"),
        ([{"module__hiden": 4}] * 3, "unexpected keyword argument 'hiden'"),
        ([{"optimizer__decay": 4}] * 3, "unexpected keyword argument 'decay'"),
        ([{"module__n_classes": 4}] * 3, "of 3 classes; it must return"),
        ([{"module__mean": 4}] * 3, "'module__mean' in member_params cannot"),
        ([{7: 4}] * 3, "7 in member_params cannot"),
        ([{}, {"module__hidden": (-3,)}, {}], r"hidden\[0\]"),
        ([{}, {"optimizer__momentum": -1}, {}], "Invalid momentum value: -1"),
        ("lr", "'member_params' parameter"),
    ],
)
def test_invalid_settings_raise_before_training(member_params, message, monkeypatch):
    monkeypatch.setattr(SkorchRun, "train", None)
    clf = DeepEnsembleClassifier(member_params=member_params, **FAST)
    with pytest.raises(ValueError, match=message):
        clf.fit(*table())


def test_module_must_accept_the_settings():
    X, y = table()
    prototype = nn.Linear(4, 3)
    clf = DeepEnsembleClassifier(prototype, member_params=[{"module__bias": False}] * 3)
    with pytest.raises(InvalidInputError, match=r"is an instance .* Pass its class"):
        clf.fit(X, y)

    def any_arguments(n_features, n_classes, **kwargs):
        return MLP(n_features, n_classes, **kwargs)

    apart = [{"module__hidden": (n,)} for n in (2, 3, 4)]
    clf = DeepEnsembleClassifier(
        any_arguments, member_params=apart, max_epochs=1, device="cpu"
    ).fit(X, y)
    widths = [net.module_.module[1].out_features for net in clf.estimators_]
    assert widths == [2, 3, 4]


def test_learning_rate_without_effect_raises():
    X, y = table()
    net = NeuralNetClassifier(
        MLP, criterion=nn.CrossEntropyLoss, optimizer__lr=0.1, max_epochs=1
    )
    clf = DeepEnsembleClassifier(net, member_params=[{"lr": 0.1}] * 3, device="cpu")
    with pytest.raises(InvalidInputError, match="no effect with estimator__optim"):
        clf.fit(X, y)
