"""Chunks that are halved when memory runs out."""

import weakref

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.autodiff import (
    in_chunks,
    is_out_of_memory,
    per_sample_squared_norms,
)
from sklearn_sharpbalance.exceptions import InvalidInputError, OutOfDeviceMemoryError
from tests.autodiff.zoo import BY_RULES, build, cross_entropy

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ..."),
    MemoryError(),
]


class Device:
    """A device with memory for ``limit`` samples, which records its chunks."""

    def __init__(self, limit, error=OUT_OF_MEMORY[0]):
        self.limit, self.error = limit, error
        self.tried, self.done = [], []

    def __call__(self, rows):
        size = rows.stop - rows.start
        self.tried.append(size)
        if size > self.limit:
            raise self.error
        self.done.append(rows)
        return torch.arange(rows.start, rows.stop)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("n", [1, 7, 8])
def test_chunks_cover_all_samples_in_order(n, chunk_size):
    device = Device(limit=100)
    assert torch.equal(in_chunks(device, n, chunk_size), torch.arange(n))
    assert max(device.tried) == min(chunk_size, n)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda e: type(e).__name__)
def test_chunks_are_halved_until_they_fit_and_stay_so(error):
    device = Device(limit=3, error=error)
    assert torch.equal(in_chunks(device, 20, 16), torch.arange(20))
    assert device.tried == [16, 8, 4] + [2] * 10


def test_memory_too_small_for_one_sample_raises():
    device = Device(limit=0)
    message = "even with `batch_size` lowered from 8 to 1.*smaller network"
    with pytest.raises(OutOfDeviceMemoryError, match=message):
        in_chunks(device, 20, 8, setting="batch_size")
    assert device.tried == [8, 4, 2, 1]


def test_other_errors_are_not_retried():
    device = Device(limit=3, error=RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        in_chunks(device, 20, 8)
    assert device.tried == [8]


def test_memory_of_a_failed_attempt_is_released():
    held = []  # weak references to the tensors of each attempt

    def fn(rows):
        assert all(ref() is None for ref in held), "the failure keeps tensors alive"
        workspace = torch.zeros(10)
        held.append(weakref.ref(workspace))
        if rows.stop - rows.start > 1:
            raise MemoryError
        return torch.zeros(1)

    assert in_chunks(fn, 2, 2).shape == (2,)
    assert len(held) == 3


@pytest.mark.parametrize("chunk_size", [0, -1, 2.5, None])
def test_invalid_chunk_size_raises(chunk_size):
    with pytest.raises(InvalidInputError, match="chunk_size must be an int"):
        in_chunks(Device(1), 3, chunk_size)


def test_out_of_memory_is_recognised():
    assert all(is_out_of_memory(error) for error in OUT_OF_MEMORY)
    assert not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(RuntimeError("index out of range"))


class Small(nn.Module):
    """Raise an out-of-memory error in the forward or backward pass."""

    def __init__(self, module, limit, where):
        super().__init__()
        self.module, self.limit, self.where = module, limit, where
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        out = self.module(x)
        if len(x) > self.limit:
            if self.where == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory")
            if out.requires_grad:
                out.register_hook(self._fail)
        return out

    def _fail(self, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_gradient_norms_with_halved_chunks_are_correct(where):
    module, X, y = build(BY_RULES["residual"])
    expected = per_sample_squared_norms(module, cross_entropy, X, y)
    small = Small(module, limit=2, where=where)
    actual = per_sample_squared_norms(
        small, cross_entropy, X, y, method="layer_rules", chunk_size=5
    )
    torch.testing.assert_close(actual, expected)
    assert max(small.sizes) == 5
    assert all(not m._forward_hooks for m in small.modules())
    assert all(p.requires_grad for p in small.parameters())
