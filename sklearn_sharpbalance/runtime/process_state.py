"""What a process has only one of: torch's generators and its flags.

Fits in two threads would draw from each other's random numbers, and put back each
other's state instead of the user's. So one thread at a time has it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["holding_process_state", "lending_process_state"]

_HELD = threading.RLock()
_THREAD = threading.local()


@contextmanager
def holding_process_state() -> Iterator[None]:
    """Have it for the time of a block; other threads wait.

    Examples
    --------
    >>> with holding_process_state(), holding_process_state():
    ...     "once more in the same thread is no matter"
    'once more in the same thread is no matter'
    """
    if getattr(_THREAD, "is_lent", False):
        yield
        return
    with _HELD:
        yield


@contextmanager
def lending_process_state() -> Iterator[None]:
    """In a thread that works for one that holds it, and that waits for this one."""
    _THREAD.is_lent = True
    try:
        yield
    finally:
        _THREAD.is_lent = False
