"""Random predictions for several tests."""

import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.special import softmax

from sklearn_sharpbalance.exceptions import UndefinedMetricWarning


def random_members(M=3, N=40, C=4, *, seed=0, scale=2.0, dtype=np.float64):
    """Return labels (N,) and probabilities (M, N, C) that correlate with them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(C, size=N)
    logits = scale * rng.normal(size=(M, N, C))
    logits[:, np.arange(N), y] += 1.0
    return y, softmax(logits, axis=-1).astype(dtype)


@contextmanager
def warns_once():
    """Expect exactly one UndefinedMetricWarning at the caller's file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    own = [w for w in caught if issubclass(w.category, UndefinedMetricWarning)]
    assert len(own) == 1, [str(w.message) for w in caught]
    assert "test_" in Path(own[0].filename).name, own[0].filename
