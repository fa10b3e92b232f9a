"""The number of threads that torch uses on a CPU."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["torch_threads"]

_LOCK = threading.Lock()
_inside = 0  # blocks that are being run, in any Python thread
_before = 1  # setting of the user, read by the first of them


@contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Run a block with a number of threads, and restore the user's setting.

    Parameters
    ----------
    n_threads : int or None
        None leaves the setting as it is.

    Notes
    -----
    OpenMP keeps one setting per Python thread, torch another one for new threads.
    Every Python thread therefore restores the setting that the first one found.

    Examples
    --------
    >>> before = torch.get_num_threads()
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    global _inside, _before
    if n_threads is None:
        yield
        return
    with _LOCK:
        if _inside == 0:
            _before = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            torch.set_num_threads(_before)
