"""Averaged and sparse members, in every engine that can train them."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from skorch.callbacks import Callback

from sklearn_sharpbalance import DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.weights import (
    WeightAveraging,
    prune_by_magnitude,
    updated_average,
)
from tests.cases import SMALL, rest_slow

FEW = SMALL | {"max_epochs": 6}


def sparsity(net):
    """Return the fraction of zeros among the trainable matrices of a member."""
    matrices = [w for w in net.module_.parameters() if w.requires_grad and w.ndim > 1]
    zeros = sum((w == 0).sum().item() for w in matrices)
    return zeros / max(1, sum(w.numel() for w in matrices))


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(120, centers=3, cluster_std=2.0, random_state=0)


@pytest.fixture(scope="module", params=rest_slow(["stacked", "skorch"]))
def last_epochs(request, blobs):
    """Return an engine, and weights of member 0 after epochs 4, 5 and 6.

    With a constant learning rate shorter fits are the beginning of longer ones.
    """
    engine = request.param
    fits = [
        DeepEnsembleClassifier(
            **{**FEW, "lr_schedule": "constant", "engine": engine, "max_epochs": n}
        ).fit(*blobs)
        for n in (4, 5, 6)
    ]
    return engine, [fit.estimators_[0].module_.state_dict() for fit in fits]


@pytest.mark.parametrize("kind", ["uniform", "exponential"])
def test_average_equals_that_of_the_weights_after_each_epoch(blobs, last_epochs, kind):
    engine, steps = last_epochs
    clf = DeepEnsembleClassifier(
        lr_schedule="constant", engine=engine, weight_averaging=kind, **FEW
    ).fit(*blobs)
    got = clf.estimators_[0].module_.state_dict()
    for key, value in got.items():
        each = torch.stack([step[key] for step in steps])
        if kind == "uniform":
            want = each.mean(0)
        else:
            want = 0.81 * each[0] + 0.09 * each[1] + 0.1 * each[2]
        torch.testing.assert_close(value, want, atol=1e-6, rtol=1e-4)


def test_batch_norm_statistics_of_an_average_are_those_of_the_data():
    rng = np.random.default_rng(0)
    X = rng.integers(256, size=(64, 8, 8, 1), dtype=np.uint8)
    y = rng.integers(2, size=64)
    clf = DeepEnsembleClassifier(
        SmallCNN,
        weight_averaging="uniform",
        n_estimators=1,
        max_epochs=4,
        train_transform=None,
        device="cpu",
    ).fit(X, y)
    net = clf.estimators_[0]
    norm = next(m for m in net.module_.modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    clf.member_predict_proba(X)
    hook.remove()
    mean = torch.cat(seen).mean((0, 2, 3))
    torch.testing.assert_close(norm.running_mean, mean, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "engine"),
    rest_slow(
        product([None, torch.optim.Adam], ["skorch", "stacked"]),
        [(None, "skorch"), (torch.optim.Adam, "stacked")],
    ),
)
def test_pruned_weights_stay_zero_during_training(blobs, engine, optimizer):
    clf = SharpBalance(
        **FEW, engine=engine, prune=0.6, rho=0.1, optimizer=optimizer, lr=0.01
    ).fit(*blobs)
    assert clf.sam_masks_.any()
    for net in clf.estimators_:
        assert sparsity(net) == pytest.approx(0.6, abs=0.01)
        biases = [p for n, p in net.module_.named_parameters() if n.endswith("bias")]
        assert all((bias != 0).any() for bias in biases)


def test_engines_prune_the_same_weights(blobs):
    probas = [
        SharpBalance(**FEW, engine=engine, prune=0.5)
        .fit(*blobs)
        .predict_proba(blobs[0])
        for engine in ("skorch", "stacked")
    ]
    np.testing.assert_allclose(*probas, atol=1e-5)


def test_smallest_weights_of_all_layers_are_pruned():
    rng = np.random.default_rng(0)
    state = {
        "module.a.weight": torch.tensor(rng.normal(size=(4, 5))),
        "module.b.weight": torch.tensor(3 * rng.normal(size=(2, 3))),
        "module.b.bias": torch.zeros(2),
        "mean": torch.ones(3, 3),
    }
    pruned = prune_by_magnitude(state, 0.5)
    keys = ("module.a.weight", "module.b.weight")
    before, after = (torch.cat([s[k].flatten() for k in keys]) for s in (state, pruned))
    largest = set(before.abs().argsort(descending=True)[:13].tolist())
    assert set(torch.nonzero(after).flatten().tolist()) == largest
    assert pruned["mean"].equal(state["mean"])


@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch"]))
@pytest.mark.parametrize(
    ("averaging", "warmup_epochs"),
    [
        (WeightAveraging(start=0.0), 0.5),
        (WeightAveraging("exponential", start=0.2), 0.5),
        ("uniform", 0.8),
        ("uniform", 1.0),  # pruned half-way, without a phase after the warm-up
    ],
)
def test_averages_have_the_requested_sparsity(blobs, engine, averaging, warmup_epochs):
    clf = SharpBalance(
        **FEW,
        engine=engine,
        weight_averaging=averaging,
        prune=0.5,
        warmup_epochs=warmup_epochs,
    ).fit(*blobs)
    for net in clf.estimators_:
        assert sparsity(net) == pytest.approx(0.5, abs=0.01)


class MoveWeights(Callback):
    """Move all weights after every batch."""

    def on_batch_end(self, net, **kwargs):
        with torch.no_grad():
            for weight in net.module_.parameters():
                weight += 1e-3


@pytest.mark.parametrize("share", [None, 0.3])
def test_callbacks_do_not_change_the_sparsity_of_an_average(blobs, share):
    options = {**FEW, "weight_averaging": "uniform", "validation_fraction": share}
    clf = DeepEnsembleClassifier(prune=0.5, callbacks=[MoveWeights()], **options)
    clf.fit(*blobs)
    assert sparsity(clf.estimators_[0]) == pytest.approx(0.5, abs=0.02)


# Epochs and values of an average -----------------------------------------------------


@pytest.mark.parametrize("n_epochs", [3, 50, 100])
def test_average_covers_the_epochs_that_end_after_its_start(n_epochs):
    for percent in range(100):
        averaging = WeightAveraging(start=percent / 100)
        covered = [e for e in range(n_epochs) if averaging.covers(e, n_epochs)]
        start = Fraction(percent, 100) * n_epochs
        assert covered == [e for e in range(n_epochs) if e + 1 > start]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_floats_are_averaged_and_integers_are_the_last_value(dtype):
    average = None
    for value in (1, 2, 6):
        weights = {"w": torch.tensor([value], dtype=dtype), "n": torch.tensor(value)}
        average = updated_average(average, weights, WeightAveraging("uniform"))
    torch.testing.assert_close(average["weights"]["w"], torch.tensor([3], dtype=dtype))
    assert average["weights"]["n"] == 6


def test_other_values_are_those_of_the_last_epoch():
    average, seen = None, {"calls": []}
    for call in (1, 2):
        seen["calls"].append(call)
        average = updated_average(average, {"extra": seen}, WeightAveraging())
        assert average["weights"]["extra"] == seen
    seen["calls"].append(3)
    assert average["weights"]["extra"] == {"calls": [1, 2]}


@pytest.mark.parametrize("name", ["start", "decay"])
@pytest.mark.parametrize("value", ["0.5", None, 1, -0.1, float("nan")])
def test_start_must_be_a_number_below_one(name, value):
    with pytest.raises(InvalidInputError, match=rf"{name} must be in \[0, 1\), got"):
        WeightAveraging(**{name: value})
