"""Whether Triton's kernels run on a GPU here."""

import warnings
from functools import cache
from importlib.util import find_spec

import torch

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = ["kernels_run_on"]


@cache
def kernels_run_on(device: torch.device) -> bool:
    """Try a small kernel on a GPU, once.

    Triton comes with torch on Linux only. It also needs a GPU that it knows and, when
    a kernel is compiled, a C compiler; finding out by trying covers it all.

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
    except Exception as error:  # whatever is missing
        warnings.warn(
            f"Triton's kernels do not run on {device}: {error} PyTorch's own are "
            "taken, which are slower.",
            SharpBalanceWarning,
            stacklevel=2,
        )
        return False
