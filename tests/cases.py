"""Small tables, settings and parametrisations that several test files use."""

import gc
import random

import numpy as np
import pytest
import torch
from scipy import ndimage
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)

KINDS = [
    SharpBalanceEnsembleClassifier,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
]
N_SAMPLES, N_EPOCHS = 60, 4

# An ensemble of two members, with three batches per epoch.
SMALL = {
    "n_estimators": 2,
    "max_epochs": N_EPOCHS,
    "batch_size": 20,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (16,),
}


def table(n=N_SAMPLES, n_features=5, seed=0):
    """Return X of shape (n, n_features) and labels of three classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_features))
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.8)


def clusters():
    """Return X of shape (60, 4), float32, and labels of three classes."""
    y = np.arange(60) % 3
    X = np.random.default_rng(0).normal(size=(60, 4)) + y[:, None]
    return X.astype(np.float32), y


def skorch_mlp(**nested):
    """Return a skorch net with an MLP and Adam."""
    loss, adam = nn.CrossEntropyLoss, torch.optim.Adam
    return NeuralNetClassifier(MLP, criterion=loss, optimizer=adam, lr=0.01, **nested)


def noise(n=80, seed=0):
    """Return a table with random labels, whose accuracy does not increase."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)), rng.integers(3, size=n)


def pictures(n=40, seed=0):
    """Return uint8 pictures of shape (n, 1, 8, 8), of a dark and a bright class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    X = rng.integers(0, 100, size=(n, 1, 8, 8)) + 100 * y[:, None, None, None]
    return X.astype(np.uint8), y


def column(clf, name, member=0):
    """Return a value of each epoch from the history of a member."""
    return [row[name] for row in clf.history_[member]]


def weights(clf, member=0):
    """Return the state of a member as one float64 vector."""
    state = clf.estimators_[member].module_.state_dict()
    return torch.cat([value.flatten().double() for value in state.values()])


def assert_same_members(one, other):
    """Assert that two ensembles have the same weights and buffers, bit for bit."""
    for mine, theirs in zip(one.estimators_, other.estimators_, strict=True):
        state, twin = mine.module_.state_dict(), theirs.module_.state_dict()
        assert all(value.equal(twin[key]) for key, value in state.items())


def seed_generators(seed):
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def global_generators():
    """Return the states of the global generators."""
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), keys.tolist(), place, torch.get_rng_state().tolist()


class Items(Dataset):
    """A Dataset whose items are the results of a function; it records what is read."""

    def __init__(self, item, length=30):
        self.item, self.length, self.read = item, length, []

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.read.append(i)
        return self.item(i)


class TwoInputs(nn.Module):
    """Take two columns and the three others as keywords."""

    def __init__(self, n_classes):
        super().__init__()
        self.last = nn.Linear(5, n_classes)

    def forward(self, a, b):
        return self.last(torch.cat([a, b], dim=1))


def rest_slow(values, keep=1):
    """Return parameters of which only some run in the default suite.

    Parameters
    ----------
    values : iterable
        Values of ``pytest.mark.parametrize``.
    keep : int or collection, default=1
        Number of leading values without the mark ``slow``, or these values.
    """
    values = list(values)
    if isinstance(keep, int):
        return values[:keep] + [_slow(value) for value in values[keep:]]
    return [value if value in keep else _slow(value) for value in values]


def _slow(value):
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)


def allocated_on_gpu():
    """Return the bytes of tensors on the GPU.

    cuBLAS keeps a workspace for every stream that it has seen, up to 32 of them, and
    each fit takes other streams from torch's pool.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def make_images(n=32, height=32, width=32, channels=3, seed=0):
    """Return different uint8 images (N, H, W, C): smooth blobs with sharp edges."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, height, width, channels))
    smooth = ndimage.gaussian_filter(noise, (0, height / 10, width / 10, 0))
    smooth /= smooth.std(axis=(1, 2, 3), keepdims=True)
    edges = np.sign(ndimage.gaussian_filter(noise[..., :1], (0, 3, 3, 0)))
    return np.clip(128 + 45 * smooth + 35 * edges, 0, 255).astype(np.uint8)


def rms(a, b):
    """Return the root mean squared difference of two arrays."""
    return np.sqrt(np.mean((a.astype(float) - b.astype(float)) ** 2))
