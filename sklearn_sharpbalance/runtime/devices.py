"""Devices, the precision of passes on them, and CUDA graphs."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.runtime.rng import holding_process_state

__all__ = [
    "AUTOCAST_DTYPES",
    "autocast",
    "capture_graph",
    "resolve_device",
    "resolve_devices",
    "resolve_precision",
    "tf32",
]

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WARM_UP_RUNS = 3  # libraries choose algorithms and allocate during the first ones
_CAPTURING = threading.Lock()  # a process can capture one graph at a time


def resolve_device(device):
    """Return the name of a device that works, for "auto", a name or a torch.device."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(
            f"Unknown device {device!r}. Use 'auto', 'cpu', 'cuda' or 'cuda:0'."
        ) from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInputError(
            f"device={device!r} needs CUDA, but torch finds no CUDA device. Use "
            "device='auto' or 'cpu'."
        )
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # the type depends on the device
        raise InvalidInputError(
            f"device={device!r} cannot be used: {in_a_sentence(error)}. Use "
            "device='auto' or 'cpu'."
        ) from error
    return str(device)


def resolve_devices(device):
    """Return the names of the devices that members are distributed over."""
    if isinstance(device, list | tuple):
        if not device:
            raise InvalidInputError(
                "device is an empty list. Pass at least one device."
            )
        return [resolve_device(one) for one in device]
    return [resolve_device(device)]


def resolve_precision(precision, device, fmt):
    """Return the precision of forward and backward passes for "auto" or a name.

    "auto" is "bf16" for images on a GPU, else "float32".

    Parameters
    ----------
    precision : str
    device : str or torch.device
    fmt : InputFormat
    """
    if precision != "auto":
        return precision
    on_gpu = torch.device(device).type == "cuda"
    has_images = fmt.shape is not None and len(fmt.shape) == 3
    return "bf16" if on_gpu and has_images else "float32"


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


def capture_graph(
    work: Callable[[], Any],
    device: torch.device,
    before_each: Callable[[], Any] = lambda: None,
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Run ``work`` a few times, then capture it.

    Parameters
    ----------
    work : callable
        Reads and writes tensors that keep their memory addresses.
    device : torch.device
        A GPU, which need not be the current one.
    before_each : callable, optional
        Called before every run; not captured.

    Returns
    -------
    graph : torch.cuda.CUDAGraph
        Its ``replay`` repeats ``work``.
    result
        The result of the captured run; each replay overwrites its tensors.
    """
    # "global" raises for calls that cannot be captured, in any thread; outside of the
    # main thread that would raise for valid calls of the other threads.
    in_main = threading.current_thread() is threading.main_thread()
    mode = "global" if in_main else "thread_local"
    with _CAPTURING, torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                before_each()
                work()
            before_each()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            result = work()
    return graph, result
