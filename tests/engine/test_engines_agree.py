"""All engines give the same members for the same states, data, segments and masks."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, EpochScoring

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.data.input_statistics import InputStatistics
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine, StackedEngine
from sklearn_sharpbalance.exceptions import SharpBalanceWarning, UnsupportedEngineError
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.optim import OPTIMIZERS, SAM, LookSAM, MomentumSAM
from tests.cases import rest_slow, skorch_mlp
from tests.engine.cases import segment, start


def table(n=90, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(np.int64) + (X[:, 1] > 1)
    weight = rng.uniform(0.5, 1.5, size=n).astype(np.float32)
    return TrainingData(X, y, weight)


def pictures(n=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    X = rng.integers(0, 120, size=(n, 1, 8, 8)) + 60 * y[:, None, None, None]
    return TrainingData(X.astype(np.uint8), y.astype(np.int64))


def run(engine, data, module, kwargs, *, sam=SAM, device="cpu", n_phases=2, **phase):
    """Return weights and losses of two members after two phases with masks."""
    shape = data.X.shape[1:]
    net = as_skorch_net(module, shape, 3, kwargs)
    mean, scale = (
        torch.tensor(value, dtype=torch.float32)
        for value in (data.X.mean(), data.X.std())
    )
    statistics = InputStatistics(mean, scale)
    net = member_net(net, 3, statistics=statistics, sam=sam, device=device)
    rng = np.random.default_rng(5)
    with engine.open(net, start(net), data) as running:
        for p in range(n_phases):
            masks = rng.random((2, len(data))) < (0.4, 0.7)[p]
            part = segment(masks, 2 * p, 2 * p + 2, n_epochs=4, batch_size=32, **phase)
            states = running.train(part, masks)
    return states


def assert_same(states, reference, tol):
    for got, want in zip(states, reference):
        for key, value in want.module.items():
            torch.testing.assert_close(got.module[key], value, atol=tol, rtol=tol)
        for a, b in zip(got.history, want.history):
            assert a["epoch"] == b["epoch"]
            assert a["train_loss"] == pytest.approx(b["train_loss"], abs=tol)
            assert a["lr"] == pytest.approx(b["lr"], rel=1e-5)
        for key, entries in want.optimizer["state"].items():
            for name, value in entries.items():
                other = got.optimizer["state"][key][name]
                torch.testing.assert_close(other, value, atol=tol, rtol=tol)
        assert len(got.history) == len(want.history)


MLP_KWARGS = {"module__hidden": (16, 8)}
NARROW = {"module__width": 8}


WITH_ADAM = skorch_mlp(module__n_features=6, module__n_classes=3)


PAIRS = [(MLP, sam) for sam in OPTIMIZERS.values()]
PAIRS += [(WITH_ADAM, sam) for sam in [*OPTIMIZERS.values()][::-1]]


@pytest.mark.parametrize(
    ("estimator", "sam"), rest_slow(PAIRS, keep=len(OPTIMIZERS) + 1)
)
def test_stacked_equals_skorch(estimator, sam):
    want = run(SkorchEngine(), table(), estimator, MLP_KWARGS, sam=sam)
    got = run(StackedEngine(), table(), estimator, MLP_KWARGS, sam=sam)
    assert_same(got, want, 2e-5)


def between(x):
    return x.float() + 0.5 * (x % 2)  # uint8 has no negative values


def smaller(x):
    return torch.nn.functional.avg_pool2d(x.float(), 2)


# In a second phase rounding errors flip ReLUs and grow.
@pytest.mark.parametrize(
    ("transform", "n_phases"),
    rest_slow([(RandomCropFlip(padding=1), 2), (smaller, 1), (None, 2), (between, 1)]),
)
def test_graph_steps_equal_skorch_on_the_cpu(transform, n_phases):
    """The captured step runs the same code; on a CPU it is not captured."""
    options = {"transform": transform, "n_phases": n_phases}
    want = run(SkorchEngine(), pictures(), SmallCNN, NARROW, **options)
    got = run(GraphEngine(), pictures(), SmallCNN, NARROW, **options)
    assert_same(got, want, 2e-4)


@pytest.mark.parametrize(
    ("sam", "precision"),
    rest_slow(
        [
            (MomentumSAM, "float32"),
            (LookSAM, "bf16"),
            (SAM, "bf16"),
            (LookSAM, "float32"),
            (MomentumSAM, "bf16"),
        ],
        keep=3,
    ),
)
def test_graph_steps_of_each_precision_equal_skorch_on_the_cpu(sam, precision):
    """Compare weights, statistics of BatchNorm and the optimizer's state."""
    options = {"sam": sam, "precision": precision, "n_phases": 1}
    want = run(SkorchEngine(), pictures(), SmallCNN, NARROW, **options)
    got = run(GraphEngine(), pictures(), SmallCNN, NARROW, **options)
    assert_same(got, want, 2e-4 if precision == "float32" else 2e-2)
    counters = [k for k in want[0].module if k.endswith("num_batches_tracked")]
    assert counters
    for key in counters:
        # Two epochs; each step passes every part of the batch once.
        assert got[0].module[key] == want[0].module[key] > 0
    for key, value in want[0].module.items():
        assert got[0].module[key].dtype == value.dtype


@pytest.mark.parametrize("sam", rest_slow([SAM, LookSAM, MomentumSAM]))
def test_fp16_keeps_the_loss_scale_between_phases(sam):
    few = pictures(32)
    states = run(SkorchEngine(), few, SmallCNN, NARROW, precision="fp16", sam=sam)
    reference = run(SkorchEngine(), few, SmallCNN, NARROW, sam=sam)
    for got, want in zip(states, reference):
        assert got.extra["scaler"]["_growth_tracker"] > 0
        losses = [[row["train_loss"] for row in s.history] for s in (got, want)]
        np.testing.assert_allclose(*losses, rtol=0.1)


def test_fp16_skips_steps_that_are_not_finite():
    """At the largest scale the first gradients overflow; weights must not change."""
    data = pictures(32)
    data = TrainingData(data.X, data.y, np.full(len(data), 1e4, dtype=np.float32))
    (state, _) = run(
        SkorchEngine(), data, SmallCNN, NARROW, precision="fp16", n_phases=1
    )
    assert state.extra["scaler"]["scale"] < 65536
    assert all(torch.isfinite(v).all() for v in state.module.values())


class DoubleCNN(SmallCNN):
    """In float64, where rounding changes no sign of a ReLU."""

    def __init__(self, in_channels, n_classes, width=8):
        super().__init__(in_channels, n_classes, width)
        self.double()

    def forward(self, x):
        return super().forward(x.double())


@pytest.mark.parametrize("sam", rest_slow([LookSAM, SAM, MomentumSAM]))
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_graph_equals_skorch_in_float64(device, sam):
    options = {"transform": RandomCropFlip(padding=1), "device": device, "sam": sam}
    want = run(SkorchEngine(), pictures(), DoubleCNN, NARROW, **options)
    got = run(GraphEngine(), pictures(), DoubleCNN, NARROW, **options)
    assert_same(got, want, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("sam", [SAM, MomentumSAM, LookSAM])
@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # TF32 has 10 bits
def test_graph_equals_skorch_on_a_gpu(sam):
    # In a second phase rounding errors flip ReLUs and grow.
    options = {"device": "cuda", "sam": sam, "n_phases": 1}
    want = run(SkorchEngine(), pictures(), SmallCNN, {}, **options)
    got = run(GraphEngine(), pictures(), SmallCNN, {}, **options)
    assert_same(got, want, 5e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("sam", OPTIMIZERS.values())
def test_graph_and_stacked_equal_skorch_for_tables_on_a_gpu(sam):
    want = run(SkorchEngine(), table(), MLP, MLP_KWARGS, sam=sam, device="cuda")
    for engine in (GraphEngine(), StackedEngine()):
        got = run(engine, table(), MLP, MLP_KWARGS, sam=sam, device="cuda")
        assert_same(got, want, 1e-3)


def test_epoch_callbacks_see_the_same_nets_in_every_engine():
    """With a callback that reads the weights, and with skorch's EpochScoring."""
    data = table()
    histories = {}
    for engine in ("skorch", "stacked"):
        clf = DeepEnsembleClassifier(
            n_estimators=2,
            max_epochs=3,
            batch_size=32,
            engine=engine,
            validation_fraction=0.2,
            callbacks=[WeightNorm(), ("f1", EpochScoring("f1_macro", name="f1"))],
            random_state=0,
        ).fit(data.X, data.y)
        histories[engine] = clf.history_
    for got, want in zip(*histories.values()):
        assert len(got) == 3
        for name in ("norm", "f1", "valid_acc", "valid_loss", "train_loss"):
            assert [row[name] for row in got] == pytest.approx(
                [row[name] for row in want], rel=1e-4
            )


class WeightNorm(Callback):
    def on_epoch_end(self, net, **kwargs):
        norm = sum(p.detach().square().sum().item() for p in net.module_.parameters())
        net.history.record("norm", norm)


class SetsOption(Callback):
    """Set an option of the optimizer; ``apart``: to another value in each member."""

    def __init__(self, name, value, apart=False):
        self.name, self.value, self.apart = name, value, apart

    def on_epoch_begin(self, net, **kwargs):
        weights = net.module_.module.state_dict()
        own = next(iter(weights.values())).sum().abs().item() if self.apart else 0
        for group in net.optimizer_.param_groups:
            group[self.name] = self.value + own


def with_option(engine, *args, **kwargs):
    data = table()
    clf = SharpBalance(
        n_estimators=2,
        max_epochs=3,
        batch_size=32,
        engine=engine,
        callbacks=[SetsOption(*args, **kwargs)],
        random_state=0,
        optimizer=torch.optim.SGD,
    )
    return clf.fit(data.X, data.y).member_predict_proba(data.X)


@pytest.mark.parametrize(
    ("name", "value"),
    rest_slow([("rho", 0.7), ("weight_decay", 0.3), ("momentum", 0.1)], keep=2),
)
def test_options_set_by_callbacks_apply_in_every_engine(name, value):
    want = with_option("skorch", name, value)
    np.testing.assert_allclose(with_option("stacked", name, value), want, atol=1e-5)
    assert np.abs(want - with_option("skorch", "rho", 0.05)).max() > 1e-2


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_callback_that_sets_the_learning_rate_warns(engine):
    with pytest.warns(SharpBalanceWarning, match=r"set lr to 0\.5.*LRScheduler"):
        with_option(engine, "lr", 0.5)


def test_options_that_differ_between_members_in_the_stacked_engine():
    want = with_option("skorch", "rho", 9.0, apart=True)
    got = with_option("stacked", "rho", 9.0, apart=True)
    np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(
        UnsupportedEngineError, match=r"weight_decay .* engine='skorch'"
    ):
        with_option("stacked", "weight_decay", 9.0, apart=True)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"engine": "graph"}, "the device is cpu, not cuda"),
        (
            {
                "engine": "stacked",
                "estimator": MLP,
                "estimator__module__n_features": 64,
                "train_transform": "crop_flip",
            },
            "one RNG per member",
        ),
        ({"engine": "stacked", "estimator": torch.nn.LazyLinear}, "not a chain of"),
    ],
)
def test_unsupported_engine_raises_with_the_reason(params, message):
    data = table()
    if params.get("train_transform"):
        data = pictures()
    with pytest.raises(ValueError, match=message):
        SharpBalance(device="cpu", **params).fit(data.X, data.y)


def test_auto_gives_the_reason_against_faster_engines():
    data = pictures()
    clf = DeepEnsembleClassifier(n_estimators=1, max_epochs=1, device="cpu")
    clf.fit(data.X, data.y)
    assert clf.engine_.name == "skorch"
    assert "not stacked: SmallResNet is not a chain" in clf.engine_.reason
    assert "not graph: the device is cpu" in clf.engine_.reason


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_members_on_several_devices_are_the_same(engine):
    data = table()
    settings = {"n_estimators": 2, "max_epochs": 3, "random_state": 0}
    settings |= {"engine": engine}
    one = SharpBalance(device="cpu", **settings).fit(data.X, data.y)
    two = SharpBalance(device=["cpu", "cpu"], **settings).fit(data.X, data.y)
    np.testing.assert_allclose(
        two.member_predict_proba(data.X), one.member_predict_proba(data.X), atol=1e-5
    )
    np.testing.assert_array_equal(two.sam_masks_, one.sam_masks_)


def test_streamed_batches_equal_resident_ones():
    data = pictures()
    rows = np.arange(60).reshape(6, 10)[::-1].copy()
    resident = DeviceData(data, "cpu", resident=True)
    streamed = DeviceData(data, "cpu", resident=False)
    for (a, i), (b, j) in zip(resident.iterate(rows), streamed.iterate(rows)):
        assert torch.equal(a, b)
        assert torch.equal(i, j)
    some = torch.tensor([[3, 1], [4, 1]])
    assert torch.equal(resident.take(some), streamed.take(some))


@pytest.mark.gpu
def test_streaming_to_a_gpu_equals_resident_data():
    data = pictures()
    rows = np.arange(60).reshape(6, 10)
    for x, row in DeviceData(data, "cuda", resident=False).iterate(rows):
        assert torch.equal(x.cpu(), torch.as_tensor(data.X)[row.cpu()])


def test_callbacks_and_validation_of_graph_steps_use_the_trained_weights():
    """Between epochs the module has its float32 weights, not the cast copies."""
    whole, held = pictures(40), pictures(30, seed=1)
    data = TrainingData(whole.X, whole.y, valid=TrainingData(held.X, held.y))
    histories = []
    for engine in (SkorchEngine(), GraphEngine()):
        states = run(engine, data, SmallCNN, NARROW, precision="bf16")
        histories.append([[r["valid_loss"] for r in s.history] for s in states])
        assert all(v.dtype != torch.bfloat16 for v in states[0].module.values())
    np.testing.assert_allclose(*histories, rtol=0.05)
