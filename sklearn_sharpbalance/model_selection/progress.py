"""The progress bar of a search."""

from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from sklearn_sharpbalance._validation import needing

__all__ = ["SearchProgress"]


class SearchProgress:
    """One bar for all fits of a search: their epochs, and the best score so far.

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
        self.n_evaluated, self.best = 0, np.nan
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
        text = f"{self.n_evaluated}/{self.n_candidates} candidates"
        if self.n_splits > 1:
            text += f" x {self.n_splits} folds"
        return text if np.isnan(self.best) else f"{text}, best {self.best:.4g}"

    def advance(self, n_epochs: int) -> None:
        """Report epochs of fits."""
        if self._bar is not None:
            self._bar.advance(self._task, n_epochs)

    def evaluated(self, results: dict[str, Any], metric: str) -> None:
        """Report the results of the candidates that are evaluated.

        Parameters
        ----------
        results : dict
            As ``cv_results_``.
        metric : str
            Name of the score that is shown, if the results have it.
        """
        self.n_evaluated = len(results["params"])
        scores = results.get(f"mean_test_{metric}", np.array([np.nan]))
        if not np.isnan(scores).all():
            self.best = float(np.nanmax(scores))
        if self._bar is not None:
            self._bar.update(self._task, description=self.text())


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
