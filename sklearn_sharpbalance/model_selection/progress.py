"""The progress bar of a search."""

from contextlib import ExitStack, contextmanager
from typing import Any

from sklearn_sharpbalance._validation import needing

__all__ = ["SearchProgress"]


class SearchProgress:
    """One bar for the stacked fits of a search, which counts their epochs.

    Parameters
    ----------
    n_candidates, n_splits : int
    n_epochs : int
        Epochs of all fits together.
    show : bool
    """

    def __init__(self, n_candidates, n_splits, n_epochs, show):
        self.n_candidates, self.n_splits = n_candidates, n_splits
        self.n_epochs, self.show = n_epochs, show
        self._bar: Any = None
        self._task: Any = None

    @contextmanager
    def shown(self):
        """Show the bar during a block."""
        with ExitStack() as stack:
            if self.show and self.n_epochs:
                self._bar = stack.enter_context(_bar())
                self._task = self._bar.add_task(self.text(), total=self.n_epochs)
            yield self
            if self._bar is not None:
                self._bar.refresh()  # notebooks do not draw the final state on exit
        self._bar = None

    def text(self) -> str:
        """Return the description of the bar."""
        return f"{self.n_candidates} candidates x {self.n_splits} folds"

    def advance(self, n_epochs: int) -> None:
        """Report epochs of fits."""
        if self._bar is not None:
            self._bar.advance(self._task, n_epochs)


def _bar():
    with needing("rich", "verbose=1"):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeRemainingColumn(),
    )
