"""Out-of-memory errors during training."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch import nn

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.exceptions import OutOfDeviceMemoryError


class Greedy(nn.Linear):
    """Raise CUDA's out-of-memory error if requested."""

    full = False

    def __init__(self):
        super().__init__(4, 2)

    def forward(self, x):
        if Greedy.full and self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().forward(x)


@pytest.fixture
def task():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_out_of_memory_names_settings_and_keeps_the_model(task, n_jobs, monkeypatch):
    clf = SharpBalanceEnsembleClassifier(
        Greedy, max_epochs=2, batch_size=16, engine="skorch", random_state=0
    ).fit(*task)
    before = clf.predict_proba(task[0])
    monkeypatch.setattr(Greedy, "full", True)
    backend = nullcontext()
    if n_jobs is not None:
        backend = parallel_config("threading", n_jobs=n_jobs)
    with backend, pytest.raises(OutOfDeviceMemoryError, match="`batch_size`") as e:
        clf.fit(*task)
    assert "batch_size=16" in str(e.value)
    assert e.value.__context__ is None  # it would keep the tensors of the step alive
    np.testing.assert_array_equal(clf.predict_proba(task[0]), before)


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu():
    """A batch too large for any GPU, after a fit that works."""
    X = np.zeros((40, 8), dtype=np.float32)
    y = np.arange(40) % 2

    class Huge(nn.Linear):
        size = 1

        def __init__(self):
            super().__init__(8, 2)

        def forward(self, x):
            wide = torch.ones(Huge.size, 1024**3, device=x.device)  # 4 GiB per row
            return super().forward(x) + wide[:, :1].mean() * 0

    settings = {"max_epochs": 1, "device": "cuda", "engine": "skorch"}
    clf = SharpBalanceEnsembleClassifier(Huge, **settings).fit(X, y)
    before = clf.predict_proba(X)
    start = torch.cuda.memory_allocated()
    Huge.size = 1024
    with pytest.raises(OutOfDeviceMemoryError, match="Lower `batch_size`"):
        clf.fit(X, y)
    Huge.size = 1
    assert torch.cuda.memory_allocated() <= start
    np.testing.assert_allclose(clf.predict_proba(X), before, rtol=1e-5)
