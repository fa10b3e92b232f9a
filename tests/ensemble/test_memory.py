"""Memory that does not grow from fit to fit, nor with copies of the data."""

import ctypes
import gc
from contextlib import suppress
from functools import partial

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance import DiversifiedEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.training_data import DeviceData
from sklearn_sharpbalance.members import train
from tests.training.killing import MB, peak_of

psutil = pytest.importorskip("psutil")


def resident():
    """Bytes that the process holds, once everything that can be freed is freed."""
    gc.collect()
    with suppress(OSError):  # another C library has its own habits
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return psutil.Process().memory_info().rss


def live_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def large_data():
    """4 MB of samples: copies that stay would be seen."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 2000), dtype=np.float32)
    return X, (X[:, 0] > 0).astype(int)


def estimator(**params):
    few = {"n_estimators": 2, "max_epochs": 2, "device": "cpu", "random_state": 0}
    return SharpBalance(**{**few, "estimator__module__hidden": (8,), **params})


def joint(**params):
    few = {"n_estimators": 2, "max_epochs": 2, "device": "cpu"}
    return DiversifiedEnsembleClassifier(
        **{**few, "estimator__module__hidden": (8,), **params}
    )


@pytest.mark.parametrize("n_fits", [6, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", ["skorch", "stacked", "joint"])
def test_memory_stays_flat_over_many_fits(engine, n_fits, tmp_path):
    X, y = large_data()
    # {fit} makes every fit write; the same folder would be read back.
    kept = {"checkpoint_dir": tmp_path / "{fit}"}
    clf = joint(**kept) if engine == "joint" else estimator(engine=engine, **kept)
    sizes, tensors = [], {}
    for i in range(n_fits):
        clf.set_params(random_state=i).fit(X, y).predict_proba(X)
        if i >= 2:  # the first ones warm up
            sizes.append(resident())
        if i in (2, n_fits - 1):
            tensors[i] = live_tensors()
    assert len(list(tmp_path.iterdir())) == n_fits
    assert max(sizes[1:]) < 1.05 * sizes[0]
    assert max(sizes[1:]) - sizes[0] < 10 * X.nbytes
    assert tensors[n_fits - 1] == tensors[2]


def test_memory_stays_flat_over_a_search():
    X, y = large_data()
    sizes = []

    class Watching(SharpBalance):
        def fit(self, X, y):
            super().fit(X, y)
            sizes.append(resident())
            return self

    watching = Watching(**estimator(max_epochs=1).get_params(deep=False))
    grid = {"rho": [0.01, 0.05, 0.1]}
    GridSearchCV(clone(watching), grid, cv=2, refit=False).fit(X, y)
    assert len(sizes) == 6
    assert max(sizes[2:]) < 1.05 * sizes[1]


# Copies of the data -------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["one thread", "threads"])
def test_members_train_on_the_samples_themselves(backend, monkeypatch):
    """Every member reads the array that the user passed, not a copy of it."""
    X, y = large_data()
    seen = []

    class Watched(DeviceData):
        def __init__(self, data, *args, **kwargs):
            super().__init__(data, *args, **kwargs)
            seen.append(self.X.data_ptr())

    monkeypatch.setattr(train, "DeviceData", Watched)
    n_jobs = 3 if backend == "threads" else 1
    with joblib.parallel_config(backend="threading", n_jobs=n_jobs):
        estimator(engine="skorch", n_estimators=3, n_jobs=n_jobs).fit(X, y)
    assert seen == [X.ctypes.data] * 6  # three members, two phases


def fit_on_80_mb():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10_000, 2000), dtype=np.float32)
    y = (X[:, 0] > 0).astype(int)
    return partial(estimator(engine="skorch", n_estimators=4, max_epochs=1).fit, X, y)


def test_the_peak_does_not_know_how_large_the_data_are(tmp_path):
    """Four members of 64 kB, batches of 1 MB, 1024 samples that are scored at a time
    and belong to the module then: a single copy of X would be 80 MB more."""
    assert peak_of(fit_on_80_mb, tmp_path) < 110 * MB  # 68 to 87 MB were measured


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["skorch", "graph"])
def test_a_gpu_is_given_back(engine):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 255, (256, 16, 16, 3), dtype=np.uint8)
    y = np.arange(256) % 3
    few = {"n_estimators": 2, "max_epochs": 2, "device": "cuda", "engine": engine}
    SharpBalance(SmallCNN, **few).fit(X, y)  # what a library sets up once stays
    before = allocated()
    for _ in range(3):
        SharpBalance(SmallCNN, **few).fit(X, y).predict(X)
        assert allocated() == before


def allocated():
    """Bytes of tensors on the GPU.

    cuBLAS keeps a workspace for every stream that it has seen, up to 32 of them, and
    each fit takes other streams from torch's pool.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()
