"""Settings of the whole process: torch's modes and threads, and the user's Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context

import torch

from sklearn_sharpbalance.runtime.torch_internals import without_compiler_import

__all__ = [
    "WITHOUT_COMPILER_IMPORT",
    "Shared",
    "SigintRecorder",
    "flushed_denormals",
    "own_torch_modes",
    "torch_threads",
]

DENORMAL = 1e-40  # in float32


class Shared:
    """Context manager for a setting of the whole process, shared between threads.

    The first thread makes the setting, and the last one undoes it. If each thread
    restored the setting that it found, it could restore that of another thread.
    """

    def __init__(self, make: Callable[[], AbstractContextManager]):
        self._make = make
        self._lock = threading.Lock()
        self._n_inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                # Context variables can only be reset in the context in which they were
                # set, and another thread may leave last.
                self._where, self._setting = copy_context(), self._make()
                self._where.run(self._setting.__enter__)
            self._n_inside += 1

    def __exit__(self, *error) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                self._where.run(self._setting.__exit__, None, None, None)


WITHOUT_COMPILER_IMPORT = Shared(without_compiler_import)


@contextmanager
def own_torch_modes() -> Iterator[None]:
    """Run a block with gradients, without autocast, and with float32 on the CPU.

    Dtype and device are those of new tensors, if none are given. The user's modes are
    restored after the block. Optimizers do not import torch's compiler, which takes
    longer than a small fit.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_FLOAT32)
        stack.enter_context(WITHOUT_COMPILER_IMPORT)
        if torch.get_default_device().type != "cpu":  # a device context is slow
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _float32_by_default() -> Iterator[None]:
    # If the user has float32, set nothing: another thread may change the default in
    # the meantime, and must keep its choice.
    before = torch.get_default_dtype()
    if before is torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_FLOAT32 = Shared(_float32_by_default)


_THREADS_LOCK = threading.Lock()
_n_threads_set = 0  # blocks that are being run, in any Python thread
_users_threads = 1  # setting of the user, read by the first of them


@contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Run a block with a number of threads (None: no change), and restore the user's.

    OpenMP keeps one setting per Python thread, torch another one for new threads.
    Every Python thread therefore restores the setting that the first one found.
    """
    global _n_threads_set, _users_threads
    if n_threads is None:
        yield
        return
    with _THREADS_LOCK:
        if _n_threads_set == 0:
            _users_threads = torch.get_num_threads()
        _n_threads_set += 1
        torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        with _THREADS_LOCK:
            _n_threads_set -= 1
            torch.set_num_threads(_users_threads)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Compute with zeros in place of denormal numbers, on the CPU and in this thread.

    A CPU takes many times as long for a denormal number. Moments of Adam decay to them
    where gradients are zero, and rounding keeps them there.
    """
    before = bool(torch.tensor(DENORMAL, dtype=torch.float32) == 0)
    torch.set_flush_denormal(True)  # False is returned where it is not supported
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class SigintRecorder:
    """Record whether the signal of Ctrl-C arrives inside a ``with`` block.

    The handler that was set before is still called. Python handles signals in the main
    thread only, so blocks in other threads record nothing.
    """

    def __init__(self):
        self.received = False
        self._before = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            # None: a handler of another language, which Python could not restore.
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not None:
                signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *exception):
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _record(self, number, frame):
        self.received = True
        if callable(self._before):
            self._before(number, frame)
