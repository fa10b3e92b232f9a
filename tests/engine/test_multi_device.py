"""Members on several devices: threads that share the state of the process."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.engine.choice import SpreadEngine
from sklearn_sharpbalance.runtime.devices import tf32
from sklearn_sharpbalance.runtime.rng import random_stream


class RecordingEngine:
    """An engine that only records the flags of torch."""

    name = "watched"

    def __init__(self, n_devices):
        self.together = threading.Barrier(n_devices, timeout=20)
        self.seen = []

    def open(self, net, members, data):
        return RecordingRun(self, net, members)


class RecordingRun:
    def __init__(self, engine, net, members):
        self.engine, self.net, self.members = engine, net, members

    def train(self, segment, masks, report):
        with random_stream("cpu"), tf32(segment.precision):
            for _ in range(20):
                self.engine.together.wait()
                self.engine.seen.append(torch.backends.cudnn.allow_tf32)
        return [(self.net.device, member) for member in self.members]

    def close(self):
        pass


@pytest.mark.parametrize("allowed", [True, False])
def test_threads_restore_flags_and_generator(allowed, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    before = torch.get_rng_state()
    net = NeuralNetClassifier(nn.Linear, module__in_features=2, module__out_features=2)
    engine = RecordingEngine(2)
    spread = SpreadEngine(engine, ["cuda:0", "cuda:1"])
    segment = SimpleNamespace(precision="float32")
    with spread.open(net, list("abcde"), None) as run:
        members = run.train(segment, np.zeros((5, 1)))
    assert [state for _, state in members] == list("abcde")
    assert [device for device, _ in members] == [f"cuda:{i % 2}" for i in range(5)]
    assert set(engine.seen) == {False}
    assert torch.backends.cudnn.allow_tf32 == allowed
    assert torch.equal(torch.get_rng_state(), before)


def test_two_names_of_one_device_are_one_device():
    """Otherwise two threads would use its generator."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = (rng.normal(size=(60, 4)) + y[:, None]).astype(np.float32)
    one, two = (
        DeepEnsembleClassifier(
            lambda: nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)),
            n_estimators=4,
            max_epochs=3,
            device=device,
            random_state=0,
        )
        .fit(X, y)
        .predict_proba(X)
        for device in ("cpu", ["cpu", "cpu:0"])
    )
    np.testing.assert_array_equal(one, two)
