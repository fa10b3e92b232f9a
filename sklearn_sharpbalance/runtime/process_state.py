"""A lock for the global state of a process: random generators and flags of torch.

Without it, fits in two threads would draw from each other's generators, and restore
each other's state instead of the user's.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["holding_process_state", "lending_process_state"]

_LOCK = threading.RLock()
_THREAD = threading.local()


@contextmanager
def holding_process_state() -> Iterator[None]:
    """Lock the global state for a block; other threads wait.

    Examples
    --------
    >>> with holding_process_state(), holding_process_state():
    ...     "a thread may lock it more than once"
    'a thread may lock it more than once'
    """
    if getattr(_THREAD, "is_lent", False):
        yield
        return
    with _LOCK:
        yield


@contextmanager
def lending_process_state() -> Iterator[None]:
    """Use the global state in a worker thread, while the thread with the lock waits."""
    _THREAD.is_lent = True
    try:
        yield
    finally:
        _THREAD.is_lent = False
