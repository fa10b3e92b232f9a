"""Memory does not grow between fits, and the data are not copied."""

import ctypes
import gc
from contextlib import suppress
from functools import partial

import joblib
import numpy as np
import pytest
import torch

from sklearn_sharpbalance import DiversifiedEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.training_data import DeviceData
from sklearn_sharpbalance.engine import skorch_engine
from tests.cases import allocated_on_gpu, rest_slow
from tests.training.killing import MB, peak_of

psutil = pytest.importorskip("psutil")


def resident():
    """Return the resident memory of the process in bytes, after freeing."""
    gc.collect()
    with suppress(OSError):  # not with another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return psutil.Process().memory_info().rss


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def large_data():
    """Return 4 MB of samples, so that copies are detected."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 200), dtype=np.float32)
    return X, (X[:, 0] > 0).astype(int)


def estimator(**params):
    few = {"n_estimators": 2, "max_epochs": 2, "batch_size": 500, "device": "cpu"}
    few |= {"random_state": 0, "estimator__module__hidden": (8,)}
    return SharpBalance(**{**few, **params})


def joint(**params):
    few = {"n_estimators": 2, "max_epochs": 2, "batch_size": 500, "device": "cpu"}
    return DiversifiedEnsembleClassifier(
        **{**few, "estimator__module__hidden": (8,), **params}
    )


@pytest.mark.parametrize("n_fits", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch", "joint"]))
def test_memory_is_constant_over_many_fits(engine, n_fits, tmp_path):
    X, y = large_data()
    # {fit} makes every fit write; the same folder would be read back.
    kept = {"checkpoint_dir": tmp_path / "{fit}"}
    clf = joint(**kept) if engine == "joint" else estimator(engine=engine, **kept)
    sizes, tensors = [], {}
    for i in range(n_fits):
        clf.set_params(random_state=i).fit(X, y).predict_proba(X)
        if i >= 2:  # the first fits allocate caches
            sizes.append(resident())
        if i in (2, n_fits - 1):
            tensors[i] = live_tensors()
    assert len(list(tmp_path.iterdir())) == n_fits
    assert max(sizes[1:]) < 1.05 * sizes[0]
    assert max(sizes[1:]) - sizes[0] < 10 * X.nbytes
    assert tensors[n_fits - 1] == tensors[2]


@pytest.mark.parametrize("backend", rest_slow(["threads", "one thread"]))
def test_members_train_on_the_given_array(backend, monkeypatch):
    """Every member reads the user's array, not a copy."""
    X, y = large_data()
    seen = []

    class RecordPointer(DeviceData):
        def __init__(self, data, *args, **kwargs):
            super().__init__(data, *args, **kwargs)
            seen.append(self.X.data_ptr())

    monkeypatch.setattr(skorch_engine, "DeviceData", RecordPointer)
    n_jobs = 3 if backend == "threads" else 1
    with joblib.parallel_config(backend="threading", n_jobs=n_jobs):
        estimator(engine="skorch", n_estimators=3).fit(X, y)
    assert seen == [X.ctypes.data] * 6  # three members, two phases


def fit_on_rows(n_rows):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 500), dtype=np.float32)
    y = (X[:, 0] > 0).astype(int)
    return partial(estimator(engine="skorch", max_epochs=1).fit, X, y)


@pytest.mark.slow
def test_peak_memory_does_not_depend_on_the_number_of_rows(tmp_path):
    """A copy of X would add 60 MB; libraries and one chunk of rows are in both."""
    few, many = (peak_of(partial(fit_on_rows, n), tmp_path) for n in (5_000, 35_000))
    assert many - few < 30 * MB  # measured: -2 to 8 MB


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["skorch", "graph"])
def test_gpu_memory_is_freed(engine):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 255, (256, 16, 16, 3), dtype=np.uint8)
    y = np.arange(256) % 3
    few = {"n_estimators": 2, "max_epochs": 2, "device": "cuda", "engine": engine}
    SharpBalance(SmallCNN, **few).fit(X, y)  # libraries allocate some memory once
    before = allocated_on_gpu()
    for _ in range(3):
        SharpBalance(SmallCNN, **few).fit(X, y).predict(X)
        assert allocated_on_gpu() == before
