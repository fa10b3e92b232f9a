"""Memory that runs out while members train."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch import nn

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.exceptions import OutOfDeviceMemoryError


class Greedy(nn.Linear):
    """Fails as CUDA's allocator does, once it has been told to."""

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
def test_the_settings_to_lower_are_named_and_the_model_stays(task, n_jobs, monkeypatch):
    clf = SharpBalanceEnsembleClassifier(
        Greedy, max_epochs=2, batch_size=16, engine="skorch", random_state=0
    ).fit(*task)
    before = clf.predict_proba(task[0])
    monkeypatch.setattr(Greedy, "full", True)
    clf.set_params(n_jobs=n_jobs)
    backend = parallel_config(backend="threading") if n_jobs else nullcontext()
    with backend, pytest.raises(OutOfDeviceMemoryError, match="`batch_size`") as e:
        clf.fit(*task)
    assert "batch_size=16" in str(e.value)
    assert e.value.__context__ is None  # which would hold the tensors of the step
    np.testing.assert_array_equal(clf.predict_proba(task[0]), before)


def test_other_errors_pass_through(task):
    class Broken(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)

        def forward(self, x):
            if self.training:
                raise RuntimeError("shapes cannot be multiplied")
            return super().forward(x)

    clf = SharpBalanceEnsembleClassifier(Broken, max_epochs=2, engine="skorch")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        clf.fit(*task)


@pytest.mark.gpu
def test_a_gpu_that_is_full():
    """A batch that no GPU can hold, after a fit that it can."""
    X = np.zeros((40, 8), dtype=np.float32)
    y = np.arange(40) % 2

    class Huge(nn.Linear):
        size = 1

        def __init__(self):
            super().__init__(8, 2)

        def forward(self, x):
            wide = torch.ones(Huge.size, 1024**3, device=x.device)  # 4 GiB a row
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
