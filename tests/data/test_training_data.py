"""Batches on a device: draws of workers, and read-only arrays."""

import warnings
import weakref

import numpy as np
import pytest
import torch

from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData, as_tensor
from tests.cases import Items

N = 11
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N, dtype=np.int64) % 3
ROWS = np.array([[3, 1, 1], [10, 0, 7]])


def draw_two(i):
    """Return a random number of torch and one of numpy, and a label."""
    return torch.tensor([torch.rand(()).item(), np.random.random()]), 0  # noqa: NPY002


def test_draws_of_workers_depend_on_the_seed():
    data = DeviceData(TrainingData(Items(draw_two, N), Y), "cpu", {"num_workers": 1})

    def draw(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.cat([x for x, _ in data.iterate(ROWS)])

    first, again, other = draw(1), draw(1), draw(2)
    assert torch.equal(first, again)
    assert (first != other).all()


READ_ONLY = {
    "rows": lambda a: a,
    "transposed": lambda a: a.T,
    "bytes": lambda a: a.astype(np.uint8),
    "empty": lambda a: a[:0],
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_read_only_arrays_pass_without_a_warning_or_a_copy(kind):
    frozen = READ_ONLY[kind](X.copy())
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = as_tensor(frozen, "cpu")
    if frozen.size:
        assert tensor.data_ptr() == frozen.ctypes.data
    want = frozen.copy()
    address = weakref.ref(frozen)
    del frozen
    assert address() is not None  # the tensor keeps the memory alive
    np.testing.assert_array_equal(tensor.numpy(), want)


def test_read_only_arrays_do_not_change_warning_filters(monkeypatch):
    """All threads share the filters."""
    frozen = X.copy()
    frozen.flags.writeable = False
    with monkeypatch.context() as patch:
        patch.setattr(warnings, "catch_warnings", None)
        assert as_tensor({"x": frozen}, "cpu")["x"].shape == X.shape
