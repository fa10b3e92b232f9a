"""Check whether Triton kernels run on a GPU."""

import warnings
from functools import cache
from importlib.util import find_spec

import torch

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = ["kernels_run_on"]


@cache
def kernels_run_on(device: torch.device) -> bool:
    """Whether a small Triton kernel runs on a device; the result is cached.

    torch includes Triton on Linux only. Triton also needs a GPU that it supports, and
    a C compiler to compile a kernel. Running a kernel checks all of these.

    Parameters
    ----------
    device : torch.device

    Examples
    --------
    >>> kernels_run_on(torch.device("cpu"))
    False
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    if find_spec("triton") is None:
        return False
    try:
        from sklearn_sharpbalance._triton_probe import add_one

        numbers = torch.zeros(16, device=device)
        with torch.cuda.device(device):
            add_one[(1,)](numbers, N=16)
        return bool((numbers == 1).all())
    except Exception as error:  # the type depends on what is missing
        warnings.warn(
            f"Triton kernels do not run on {device}: {error} PyTorch's kernels are "
            "used instead, which are slower. Install a C compiler if it is missing.",
            SharpBalanceWarning,
            stacklevel=2,
        )
        return False
