"""Run library code in torch's default modes, whatever the user has set.

A script may have set other modes: float64 or another device for new tensors, no
gradients, autocast. Members are float32 on the device of their net, and trained at the
precision of the ensemble.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from sklearn_sharpbalance.runtime.torch_internals import without_compiler_import

__all__ = ["own_torch_modes"]


@contextmanager
def own_torch_modes() -> Iterator[None]:
    """Run a block with gradients, without autocast, and with float32 on the CPU.

    Dtype and device are those of new tensors, if none are given. The user's modes are
    restored after the block. Optimizers do not import torch's compiler, which takes
    longer than a small fit.

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
        stack.enter_context(without_compiler_import())
        if torch.get_default_device().type != "cpu":  # a device context is slow
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class _Float32:
    """Context with float32 as default dtype, restored when the last thread exits.

    All threads share the default, and may enter and exit in any order.
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
        # If the user has float32, set nothing: another thread may change the default
        # in the meantime, and must keep its choice.
        if self._before is not torch.float32:
            torch.set_default_dtype(dtype)


_FLOAT32 = _Float32()
