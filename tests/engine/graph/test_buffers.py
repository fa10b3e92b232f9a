"""Buffers of the captured step: their contents, and no writes to those in use."""

import numpy as np
import pytest
import torch

from sklearn_sharpbalance import SmallCNN
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.engine.graph import buffers as feed_module
from sklearn_sharpbalance.engine.graph.buffers import EpochFeed
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.runtime.rng import epoch_rng
from tests.engine.cases import segment, start

N_EPOCHS = 3


def make_feed(device, transform=None):
    rng = np.random.default_rng(0)
    X = rng.integers(256, size=(50, 1, 8, 8)).astype(np.uint8)
    weight = rng.random(50).astype(np.float32)
    data = TrainingData(X, rng.integers(3, size=50), weight)
    net = as_skorch_net(SmallCNN, (1, 8, 8), 3, {})
    net = member_net(net, 3, sam=SAM, device=device)
    masks = rng.random((2, 50)) < 0.4
    phase = segment(masks, 0, N_EPOCHS, N_EPOCHS, batch_size=8, transform=transform)
    sessions = [MemberSession(net, state, data, phase) for state in start(net)]
    source = DeviceData(data, torch.device(device))
    return EpochFeed(sessions, source, phase, list(masks)), data


def read(feed):
    """Return the batches of all steps, read as soon as a chunk is available."""
    found = []
    for epoch in range(N_EPOCHS):
        for first, is_sam in feed.chunks(epoch):
            places = slice(first, first + len(is_sam))
            buffers = (feed.x, feed.y, feed.weight, feed.lr)
            found.append(
                [[b[places].clone().cpu() for b in buffer] for buffer in buffers]
            )
    return [
        [torch.cat([piece[k][i] for piece in found]) for i in range(2)]
        for k in range(4)
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("half_bytes", [1, 3000, 10**9])
def test_every_step_holds_its_batch(half_bytes, device, monkeypatch):
    monkeypatch.setattr(feed_module, "HALF_BYTES", half_bytes)
    feed, data = make_feed(device)
    n_batches = feed.segment.sizes.n_batches
    x, y, weight, lr = read(feed)
    for i, session in enumerate(feed.sessions):
        for epoch in range(N_EPOCHS):
            rng = epoch_rng(session.state.seed, epoch)
            rows = feed.layouts[i].epoch(rng)
            steps = slice(epoch * n_batches, (epoch + 1) * n_batches)
            np.testing.assert_array_equal(x[i][steps], data.X[rows])
            np.testing.assert_array_equal(y[i][steps], data.y[rows])
            want = feed.layouts[i].share * data.weight[rows]
            np.testing.assert_allclose(weight[i][steps], want, rtol=1e-6)
        want = [
            feed.segment.lr_factor(epoch, t)
            for epoch in range(N_EPOCHS)
            for t in range(n_batches)
        ]
        rate = session.net.optimizer_.param_groups[0]["initial_lr"]
        np.testing.assert_allclose(lr[i], rate * np.array(want), rtol=1e-6)


def test_augmentation_does_not_depend_on_chunks(monkeypatch):
    whole = read(make_feed("cpu", RandomCropFlip(2))[0])
    monkeypatch.setattr(feed_module, "HALF_BYTES", 3000)
    feed, _ = make_feed("cpu", RandomCropFlip(2))
    assert feed.length < feed.segment.sizes.n_batches
    for got, want in zip(read(feed)[0], whole[0]):
        torch.testing.assert_close(got, want)


def test_steps_that_may_be_running_are_not_overwritten(monkeypatch):
    monkeypatch.setattr(feed_module, "HALF_BYTES", 3000)
    feed, _ = make_feed("cpu")
    running = None
    for epoch in range(N_EPOCHS):
        for first, is_sam in feed.chunks(epoch):
            if running is not None:  # the previous chunk, after the next was fetched
                places, kept = running
                torch.testing.assert_close(feed.x[0][places], kept)
            places = slice(first, first + len(is_sam))
            running = places, feed.x[0][places].clone()


class Grows:
    def __init__(self):
        self.n_calls = 0

    def __call__(self, x):
        self.n_calls += 1
        return x if self.n_calls < 9 else x.repeat(1, 1, 2, 2)


def test_batches_of_another_size_raise():
    feed, _ = make_feed("cpu", Grows())
    with pytest.raises(UnsupportedEngineError, match=r"1, 16, 16\) .* engine='skorch'"):
        read(feed)


def test_no_batches_are_fetched_after_the_last_step():
    feed, _ = make_feed("cpu")
    for _ in feed.chunks(N_EPOCHS - 1):
        pass
    assert feed._prefetched is None
