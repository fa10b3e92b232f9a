"""Numeric precision of forward and backward passes."""

from contextlib import contextmanager

import torch

from sklearn_sharpbalance.runtime.process_state import holding_process_state

__all__ = ["AUTOCAST_DTYPES", "autocast", "tf32"]

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision, device, *, cache=True):
    """Return a context that runs forward passes at the given precision.

    Parameters
    ----------
    precision : str
        "bf16" and "fp16" cast; "float32" and "tf32" do not.
    device : str or torch.device
    cache : bool, default=True
        Whether cast weights are kept until the block ends; pass False in a CUDA graph,
        which would not update them.
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
    """Forbid TensorFloat-32 inside the block for "float32", else allow it.

    torch allows it for convolutions by default.
    """
    if not torch.cuda.is_available():
        yield
        return
    allowed = precision != "float32"
    with holding_process_state():
        matmul_before = torch.get_float32_matmul_precision()
        cudnn_before = torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul_before)
            torch.backends.cudnn.allow_tf32 = cudnn_before
