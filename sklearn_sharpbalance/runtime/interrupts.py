"""Tell the user's Ctrl-C from a KeyboardInterrupt that code raises."""

import signal
import threading

__all__ = ["SigintRecorder"]


class SigintRecorder:
    """Record whether the signal of Ctrl-C arrives inside a ``with`` block.

    The handler that was set before is still called. Python handles signals in the main
    thread only, so blocks in other threads record nothing.

    Attributes
    ----------
    received : bool

    Examples
    --------
    >>> with SigintRecorder() as ctrl_c:
    ...     try:
    ...         raise KeyboardInterrupt
    ...     except KeyboardInterrupt:
    ...         ctrl_c.received
    False
    """

    def __init__(self):
        self.received = False
        self._before = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            # None: a handler of another language, which Python could not restore.
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not None:
                signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *exception):
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _record(self, number, frame):
        self.received = True
        if callable(self._before):
            self._before(number, frame)
