"""Small networks train with one thread; torch's setting is restored."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    SmallCNN,
    load,
)
from sklearn_sharpbalance.engine import skorch_engine
from sklearn_sharpbalance.engine.choice import SMALL_PRODUCT, choose_threads
from sklearn_sharpbalance.runtime.process import torch_threads
from tests.cases import clusters

X, y = clusters()
pictures = np.random.default_rng(0).integers(256, size=(60, 8, 8, 3), dtype=np.uint8)
FAST = {"n_estimators": 2, "max_epochs": 1, "random_state": 0}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Threads(Callback):
    """Records the number of threads at the end of every epoch."""

    seen: list[int] = []

    def on_epoch_end(self, net, **kwargs):
        self.seen.append(torch.get_num_threads())


@pytest.fixture
def seen(two_threads):
    Threads.seen.clear()
    return Threads.seen


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (SharpBalanceEnsembleClassifier, {"engine": "stacked"}),
        (SharpBalanceEnsembleClassifier, {"engine": "skorch"}),
        pytest.param(DeepEnsembleClassifier, {}, marks=pytest.mark.slow),
        (DiversifiedEnsembleClassifier, {}),
    ],
)
def test_small_networks_train_with_one_thread(kind, params, seen, tmp_path):
    clf = kind(callbacks=[Threads()], **params, **FAST).fit(X, y)
    if kind is SharpBalanceEnsembleClassifier:
        clf.partial_fit(X, y)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
    assert clf.engine_.threads == 1
    clf.set_params(callbacks=None).fit(X, y).save(tmp_path / "model")
    assert load(tmp_path / "model").engine_ == clf.engine_


def test_large_networks_and_pictures_use_the_setting_of_torch(seen):
    clf = DeepEnsembleClassifier(SmallCNN, callbacks=[Threads()], **FAST)
    assert clf.fit(pictures, y).engine_.threads is None
    assert set(seen) == {2}


def test_threads_train_members_as_one_thread_does(two_threads, monkeypatch):
    train, seen = skorch_engine.train_batch, set()

    def spy(*args):
        seen.add((threading.get_ident(), torch.get_num_threads()))
        return train(*args)

    monkeypatch.setattr(skorch_engine, "train_batch", spy)
    clf = SharpBalanceEnsembleClassifier(**FAST | {"max_epochs": 2})
    state, fits = torch.get_rng_state(), []
    for n_threads in (2, 1):
        torch.set_num_threads(n_threads)
        fits.append(clf.fit(pictures, y).member_predict_proba(pictures))
    assert {n for _, n in seen} == {1}
    assert len(seen) > 1
    np.testing.assert_array_equal(fits[0], fits[1])
    assert torch.get_rng_state().equal(state)


class OwnNetwork(nn.Module):
    """Records the number of threads of every forward pass."""

    def __init__(self, n_features=4, n_classes=3):
        super().__init__()
        self.last = nn.Linear(n_features, n_classes)

    def forward(self, x):
        Threads.seen.append(torch.get_num_threads())
        return self.last(x)


def test_predictions_and_load_use_the_threads_of_the_fit(seen, tmp_path):
    clf = DeepEnsembleClassifier(OwnNetwork, **FAST).fit(X, y)
    clf.save(tmp_path / "model")
    seen.clear()
    clf.predict(X)
    clf.member_predict_proba(X)
    list(clf.staged_predict_proba(X))
    load(tmp_path / "model", module=OwnNetwork).predict(X)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork"
)
def test_a_forked_process_can_predict_and_fit(two_threads, tmp_path):
    clf = DeepEnsembleClassifier(**FAST).fit(X, y)
    clf.save(tmp_path / "model")
    many = np.resize(X, (5000, 4))
    held_out = DeepEnsembleClassifier(**FAST, validation_fraction=0.5)
    for call, args in [
        (clf.predict_proba, (many,)),
        (load(tmp_path / "model").predict_proba, (many,)),
        (held_out.fit, (many, np.resize(y, 5000))),
    ]:
        call(*args)
        torch.ones(500, 500) @ torch.ones(500, 500)  # with both threads
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=call, args=args)
        process.start()
        process.join(60)
        process.kill()
        assert process.exitcode == 0


@pytest.mark.parametrize(
    ("module", "batch_size", "n_members", "threads"),
    [
        (nn.Linear(256, 256), SMALL_PRODUCT // 2**16 - 1, 1, 1),
        (nn.Linear(256, 256), SMALL_PRODUCT // 2**16, 1, None),
        (nn.Linear(256, 256), SMALL_PRODUCT // 2**17, 2, None),
        (MLP(64, 10), 128, 3, 1),
        (MLP(64, 10, hidden=2048), 128, 3, None),
        (nn.Conv1d(3, 3, 3), 1, 1, None),
        (nn.ReLU(), 10**9, 1, 1),
    ],
)
def test_threads_follow_the_largest_product(module, batch_size, n_members, threads):
    net = NeuralNetClassifier(module, module__module=module)
    assert choose_threads(net, batch_size, n_members) == threads
    assert choose_threads(net.set_params(device="cuda"), batch_size, n_members) is None


def test_fits_in_threads_restore_the_setting(two_threads):
    with pytest.raises(RuntimeError), torch_threads(1):
        raise RuntimeError
    assert torch.get_num_threads() == 2

    def block(i):
        with torch_threads(1):
            time.sleep(0.05 * (i + 1))
        return torch.get_num_threads()

    with ThreadPoolExecutor(3) as pool:
        after = list(pool.map(block, range(3)))
        assert after == [2, 2, 2]
        assert list(pool.map(lambda _: torch.get_num_threads(), range(3))) == [2, 2, 2]
    assert torch.get_num_threads() == 2
