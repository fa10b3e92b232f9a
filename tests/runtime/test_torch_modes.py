"""Fits and predictions do not depend on the torch modes of the user."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import joblib
import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    load,
)
from sklearn_sharpbalance.runtime.process import flushed_denormals, own_torch_modes
from tests.cases import clusters, rest_slow

X, y = clusters()
SMALL = {"n_estimators": 2, "max_epochs": 3, "random_state": 0, "device": "cpu"}


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES = {
    "float64": lambda: default_dtype(torch.float64),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "meta by default": lambda: default_device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def modes():
    new = torch.zeros(1)
    return (
        new.dtype,
        new.device.type,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


class Net(nn.Module):
    """Creates tensors with default dtype and device, in __init__ and forward."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        shift = torch.ones(8)
        return self.last(self.first(x * self.scale).relu() + shift)


CASES = [
    (SharpBalanceEnsembleClassifier, {}),
    (SharpBalanceEnsembleClassifier, {"estimator": Net, "engine": "skorch"}),
    (DiversifiedEnsembleClassifier, {"estimator": Net}),
]


@pytest.fixture(scope="module")
def plain():
    made = [kind(**params, **SMALL) for kind, params in CASES]
    return [clf.fit(X, y).predict_proba(X) for clf in made]


ALL = list(itertools.product(MODES, range(len(CASES))))


@pytest.mark.parametrize(
    ("mode", "case"),
    rest_slow(
        ALL,
        [
            ("float64", 0),
            ("inference_mode", 0),
            ("meta by default", 1),
            ("autocast", 2),
        ],
    ),
)
def test_a_fit_does_not_depend_on_the_users_modes(plain, mode, case, tmp_path):
    kind, params = CASES[case]
    with MODES[mode]():
        before = modes()
        clf = kind(**params, **SMALL).fit(X, y)
        np.testing.assert_array_equal(clf.predict_proba(X), plain[case])
        clf.member_predict_proba(X), clf.decision_function(X)
        assert len(list(clf.staged_predict_proba(X))) == 2
        clf.save(tmp_path / "model")
        named = {"module": Net} if params else {}
        again = load(tmp_path / "model", **named)
        np.testing.assert_array_equal(again.predict_proba(X), plain[case])
        assert modes() == before
    for net in clf.estimators_:
        assert {p.dtype for p in net.module_.parameters()} == {torch.float32}
        assert not any(p.is_inference() for p in net.module_.parameters())
    np.testing.assert_array_equal(clf.predict_proba(X), plain[case])


@pytest.mark.parametrize("mode", rest_slow(MODES, ["inference_mode"]))
def test_a_step_does_not_depend_on_the_users_modes(mode):
    def steps(around):
        clf = SharpBalanceEnsembleClassifier(**SMALL)
        for _ in range(3):
            with around():
                clf.partial_fit(X, y)
        return clf.predict_proba(X)

    np.testing.assert_array_equal(steps(MODES[mode]), steps(nullcontext))


def test_modes_are_restored_after_an_error_and_between_stages():
    clf = SharpBalanceEnsembleClassifier(**SMALL)
    with torch.no_grad(), default_dtype(torch.float64):
        before = modes()
        with pytest.raises(ValueError, match="y has 2"):
            clf.fit(X, y[:2])
        assert modes() == before
        for _ in clf.fit(X, y).staged_predict_proba(X):
            assert modes() == before


def test_jobs_in_threads_have_the_same_modes():
    options = {**SMALL, "engine": "skorch", "estimator": Net}
    want = SharpBalanceEnsembleClassifier(**options).fit(X, y).predict_proba(X)
    with default_dtype(torch.float64), joblib.parallel_config("threading", n_jobs=2):
        clf = SharpBalanceEnsembleClassifier(**options).fit(X, y)
        np.testing.assert_array_equal(clf.predict_proba(X), want)
        assert torch.get_default_dtype() == torch.float64


def test_the_last_thread_restores_the_default():
    """Threads may exit in any order."""
    both_in, first_out = threading.Barrier(2), threading.Event()

    def first():
        with own_torch_modes():
            both_in.wait()
        first_out.set()

    def second():
        with own_torch_modes():
            both_in.wait()
            first_out.wait()
            return torch.get_default_dtype()

    with default_dtype(torch.float64), ThreadPoolExecutor(2) as pool:
        seen = [pool.submit(work) for work in (first, second)]
        assert seen[1].result() == torch.float32
        assert torch.get_default_dtype() == torch.float64


def test_a_default_set_by_another_thread_stays():
    with default_dtype(torch.float32):
        with own_torch_modes():
            torch.set_default_dtype(torch.float64)
        assert torch.get_default_dtype() == torch.float64


def flushes():
    return bool(torch.tensor(1e-40) == 0)


@pytest.mark.parametrize("users", [False, True])
def test_denormals_are_flushed_inside_the_block_only(users):
    torch.set_flush_denormal(users)
    try:
        with flushed_denormals():
            assert flushes()
        assert flushes() is users
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("engine", ["stacked", "skorch"])
def test_moments_of_weights_without_gradients_do_not_stay_denormal(engine):
    X = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    X[1:, 0] = 0.0  # one of the 250 steps of an epoch has a gradient of its weights
    clf = DeepEnsembleClassifier(
        **SMALL | {"n_estimators": 1, "max_epochs": 1, "batch_size": 2},
        engine=engine,
        estimator=MLP,
        standardize=False,
        optimizer=torch.optim.AdamW,
        estimator__optimizer__betas=(0.6, 0.999),  # stays at the least denormal number
    )
    clf.fit(X, np.arange(500) % 2)
    for net in clf.estimators_:
        first = next(iter(net.optimizer_.state.values()))["exp_avg"]
        assert ((first.abs() > 1e-38) | (first == 0)).all()
    assert not flushes()
