"""Devices, the precision of passes on them, memory formats and CUDA graphs."""

import os
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from sklearn_sharpbalance.runtime.rng import holding_process_state

__all__ = [
    "AUTOCAST_DTYPES",
    "allows_channels_last",
    "autocast",
    "capture_graph",
    "channels_last_on_cpu",
    "contiguous_on_cpu",
    "contiguous_weights_on_cpu",
    "free_memory",
    "resolve_device",
    "resolve_devices",
    "resolve_precision",
    "tf32",
]

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CONTAINER = Path("/sys/fs/cgroup")  # limits of this container on Linux
WARM_UP_RUNS = 3  # libraries choose algorithms and allocate during the first ones
_CAPTURING = threading.Lock()  # a process can capture one graph at a time


def resolve_device(device):
    """Return the name of a device that works, for "auto", a name or a torch.device."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # the type depends on the device
        raise InvalidInputError(
            f"device={device!r} cannot be used: {in_a_sentence(error)}. Use 'auto', "
            "'cpu', 'cuda' or 'cuda:0'."
        ) from error
    return str(device)


def resolve_devices(device):
    """Return the names of the devices that members are distributed over."""
    if isinstance(device, list | tuple):
        if not device:
            raise InvalidInputError("device is an empty list. Pass at least one.")
        return [resolve_device(one) for one in device]
    return [resolve_device(device)]


def resolve_precision(precision, device, fmt):
    """Return the precision of passes; "auto" is "bf16" for images on a GPU."""
    if precision == "fp16" and torch.device(device).type == "cpu":
        warnings.warn(
            "precision='fp16' on a CPU can be 40 times slower than float32. Use "
            "'float32' or 'bf16' there.",
            SharpBalanceWarning,
            stacklevel=2,
        )
    if precision != "auto":
        return precision
    on_gpu = torch.device(device).type == "cuda"
    has_images = fmt.shape is not None and len(fmt.shape) == 3
    return "bf16" if on_gpu and has_images else "float32"


def autocast(precision, device, *, cache=True):
    """Return a context that casts in forward passes for "bf16" and "fp16".

    With ``cache``, cast weights are kept until the block ends; pass False in a CUDA
    graph, which would not update them.
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


# oneDNN corrupts the heap, hangs or returns wrong weight gradients for a strided 1x1
# convolution whose input or weight is channels-last in memory and has fewer than 16
# channels (uxlfoundation/oneDNN#6035; x86-64, torch 2.10 to 2.15):
#     x = torch.randn(17, 8, 16, 16).contiguous(memory_format=torch.channels_last)
#     w = torch.randn(16, 8, 1, 1, requires_grad=True)
#     for _ in range(300):
#         torch.conv2d(x, w, stride=2).sum().backward()
# It also fails for a contiguous x and a w of strides (8, 1, 8, 8). One channels-last
# tensor makes everything after it channels-last, so on a CPU neither an input nor a
# weight may be, except for networks whose convolutions all have a stride of 1.


def contiguous_on_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor on a CPU in C order, any other one as it is.

    ``Tensor.contiguous`` is not enough: it ignores the strides of axes of length 1, and
    convolutions use these to recognise channels-last tensors.
    """
    if x.device.type != "cpu" or x.layout is not torch.strided:
        return x
    if x.stride() == torch.empty(x.shape, device="meta").stride():
        return x
    return x.clone(memory_format=torch.contiguous_format)


def allows_channels_last(module: torch.nn.Module) -> bool:
    """Whether the input of a network may be channels-last on a CPU.

    Its own class must have ``safe_channels_last = True``, since a subclass may call
    convolutions as functions, and none of its layers may be a strided convolution.
    """
    if not vars(type(module)).get("safe_channels_last", False):
        return False
    convolutions = (m for m in module.modules() if isinstance(m, torch.nn.Conv2d))
    return all(convolution.stride == (1, 1) for convolution in convolutions)


def channels_last_on_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return float32 images (N, C, H, W) on a CPU channels-last, others contiguous.

    It is faster, but for networks of :func:`allows_channels_last` only.
    """
    is_image = x.ndim == 4 and x.dtype is torch.float32 and x.device.type == "cpu"
    if not is_image or torch.compiler.is_compiling():  # a compiler chooses itself
        return contiguous_on_cpu(x)
    # vmap does not support Tensor.contiguous(memory_format=torch.channels_last).
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def contiguous_weights_on_cpu(module: torch.nn.Module) -> None:
    """Convert weights and buffers on a CPU to C order."""
    for tensor in (*module.parameters(), *module.buffers()):
        if is_lazy(tensor):
            continue
        values = tensor.data
        contiguous = contiguous_on_cpu(values)
        if contiguous is not values:
            tensor.data = contiguous


def free_memory(device: torch.device) -> float:
    """Return the free memory of a device in bytes; infinity if it is not known."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = [float("inf")]
    with suppress(AttributeError, ValueError, OSError):  # not on every platform
        found = [float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    with suppress(IndexError, ValueError, OSError):  # the cache of files is free, too
        text = Path("/proc/meminfo").read_text().split("MemAvailable:")[1]
        found = [1024.0 * int(text.split()[0])]
    with suppress(IndexError, ValueError, OSError):
        limit = int((CONTAINER / "memory.max").read_text())
        text = (CONTAINER / "memory.stat").read_text().split("anon ")[1]
        found.append(float(limit - int(text.split()[0])))
    return min(found)


def capture_graph(
    work: Callable[[], Any],
    device: torch.device,
    before_each: Callable[[], Any] = lambda: None,
    pool: Any = None,
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Run ``work`` a few times, then capture it; return the graph and the result.

    The work reads and writes tensors that keep their memory addresses, on a GPU that
    need not be the current one. Each replay overwrites the tensors of the result.
    ``before_each`` is called before every run, and is not captured. ``pool`` is that of
    a graph whose memory may be used, since the two are never replayed at once.
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
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            result = work()
    return graph, result
