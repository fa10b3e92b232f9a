"""Capture operations on a GPU as a CUDA graph, on any device and from any thread."""

import threading
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["capture_graph"]

WARM_UP_RUNS = 3  # libraries choose algorithms and allocate during the first ones
_CAPTURING = threading.Lock()  # a process can capture one graph at a time


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
