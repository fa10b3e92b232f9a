"""torch's global modes while the library is at work: those that it is written for.

A script may have set others for code of its own: float64 or another device for new
tensors, no gradients, casts to bfloat16. Members are float32 on the device of their
net, and trained at the precision that was asked for.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["own_torch_modes"]


@contextmanager
def own_torch_modes() -> Iterator[None]:
    """Run a block with gradients, without casts, and with float32 tensors on the CPU.

    That is where new tensors are made if nothing else is said. The user's modes are
    back after the block.

    Examples
    --------
    >>> with torch.inference_mode(), torch.device("meta"), own_torch_modes():
    ...     new = torch.zeros(1, requires_grad=True)
    ...     new.dtype, new.device.type, (2 * new).requires_grad
    (torch.float32, 'cpu', True)
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_FLOAT32)
        if torch.get_default_device().type != "cpu":  # not for nothing: it costs time
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class _Float32:
    """float32 by default, until the last thread has left.

    The default is one for all threads, which may come and go in any order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._before = torch.float32

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                self._before = torch.get_default_dtype()
                self._set(torch.float32)
            self._n_inside += 1

    def __exit__(self, *error) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                self._set(self._before)

    def _set(self, dtype: torch.dtype) -> None:
        # Where the user has float32 nothing is set, now or at the end: another thread
        # may choose something else in between, and keeps it.
        if self._before is not torch.float32:
            torch.set_default_dtype(dtype)


_FLOAT32 = _Float32()
