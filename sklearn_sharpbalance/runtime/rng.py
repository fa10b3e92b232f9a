"""Random streams: seeds of members and epochs, and the global generators."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

__all__ = [
    "AFTER_TRAINING",
    "BEFORE_TRAINING",
    "WithoutDraws",
    "epoch_rng",
    "epoch_seed",
    "global_states",
    "holding_process_state",
    "lending_process_state",
    "random_stream",
    "seed_generators",
]

# Used in place of the number of an epoch, for draws outside of all epochs.
BEFORE_TRAINING = 2**32
AFTER_TRAINING = 2**32 + 1

DRAWS = {  # of weights
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.nn.init.kaiming_uniform_,
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
}
# The lock of the process's global state: random generators and flags of torch. Without
# it, fits in two threads would draw from each other's generators, and restore each
# other's state instead of the user's.
_LOCK = threading.RLock()
_THREAD = threading.local()


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """Return the generator of one epoch of one member.

    It depends on these two numbers only, so neither splitting a fit into phases nor
    resuming it changes the draws.
    """
    return np.random.default_rng([seed, epoch])


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of the global generators for one epoch of one member."""
    return int(epoch_rng(seed, epoch).integers(2**62))


def seed_generators(seed: int, device: str | torch.device = "cpu") -> None:
    """Seed the global generators of torch (CPU and this device), numpy and Python.

    Call it inside :func:`random_stream`, which restores them. ``torch.manual_seed``
    would also seed all other devices, where other members may be training.
    """
    seed = int(seed)  # Python's generator takes no numpy integer
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    if torch.device(device).type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def global_states() -> tuple:
    """Return the states of the global generators on the CPU, to be compared."""
    numpy_state = str(np.random.get_state(legacy=False))  # noqa: NPY002
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, numpy_state, random.getstate()


@contextmanager
def random_stream(
    device: str | torch.device = "cpu", *, seed: int | None = None
) -> Iterator[None]:
    """Restore the global generators of torch, numpy and Python after a block.

    Modules, callbacks, transforms and items of a Dataset may draw from them, networks
    even in evaluation mode. Other threads that want a stream wait, since they would
    draw from the same generators. The block computes on the device; a ``seed`` of None
    does not seed the generators.
    """
    device = torch.device(device)
    cuda_devices = [device] if device.type == "cuda" else []
    with holding_process_state(), torch.random.fork_rng(devices=cuda_devices):
        numpy_state = np.random.get_state()  # noqa: NPY002
        python_state = random.getstate()
        try:
            if seed is not None:
                seed_generators(seed, device)
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@contextmanager
def holding_process_state() -> Iterator[None]:
    """Lock the global state for a block; other threads wait."""
    if getattr(_THREAD, "is_lent", False):
        yield
        return
    with _LOCK:
        yield


@contextmanager
def lending_process_state() -> Iterator[None]:
    """Use the global state in a worker thread, while the thread with the lock waits."""
    _THREAD.is_lent = True
    try:
        yield
    finally:
        _THREAD.is_lent = False


class WithoutDraws(TorchFunctionMode):
    """Leaves out draws of new weights that will be overwritten, or have no memory.

    On the meta device torch would import its compiler for a draw.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
