"""Capture work on a GPU as a CUDA graph, on any device and from any thread."""

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
    """Run the work a few times, then record what it launches.

    Parameters
    ----------
    work : callable
        Reads and writes tensors that stay where they are.
    device : torch.device
        A GPU, which need not be the current one.
    before_each : callable, optional
        Called before every run; not recorded.

    Returns
    -------
    graph : torch.cuda.CUDAGraph
        Its ``replay`` does the work again.
    result
        What the recorded run returned; the tensors in it are written by each replay.
    """
    # The strict mode finds calls that a graph cannot hold, wherever they come from; in
    # a thread it would forbid the others what they may do.
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
