"""Numeric precision of forward and backward passes."""

from contextlib import contextmanager

import torch

from sklearn_sharpbalance.runtime.process_state import holding_process_state

__all__ = ["autocast", "tf32"]

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision, device, *, cache=True):
    """Context in which a pass runs at the given precision.

    Parameters
    ----------
    precision : str
        "float32" and "tf32" cast nothing.
    device : str or torch.device
    cache : bool, default=True
        Keep cast weights until the block ends; a CUDA graph must not, since it would
        not refresh them.
    """
    dtype = AUTOCAST_DTYPES.get(precision)
    return torch.autocast(
        torch.device(device).type,
        dtype=dtype or torch.bfloat16,
        enabled=dtype is not None,
        cache_enabled=cache,
    )


@contextmanager
def tf32(precision):
    """Let float32 products use TensorFloat-32 inside the block, or forbid it.

    torch allows it for convolutions by default; "float32" means float32 here.
    """
    if not torch.cuda.is_available():
        yield
        return
    allowed = precision != "float32"
    with holding_process_state():
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]
