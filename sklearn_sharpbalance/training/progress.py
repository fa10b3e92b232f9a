"""Telling the user how a fit goes: progress bars and scikit-learn's callbacks."""

import copy
from contextlib import ExitStack, contextmanager
from typing import Any

try:  # new in scikit-learn 1.9 and still experimental there
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # pragma: no cover

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands in where scikit-learn has no callbacks."""

    def with_callbacks(method):
        """The method as it is."""
        return method


from sklearn_sharpbalance._validation import needing

__all__ = [
    "CallbackSupportMixin",
    "FitMonitor",
    "has_callbacks",
    "with_callbacks",
]


def has_callbacks(estimator) -> bool:
    """Whether scikit-learn's callbacks follow the fits of an estimator."""
    return bool(getattr(estimator, "_skl_callbacks", None))


class FitMonitor:
    """Follows a fit: phases, then members, then epochs.

    Parameters
    ----------
    estimator : estimator instance
        Whose callbacks are called.
    n_members : int
    segments : list of Segment
        The plan, or what is left of it; nothing if a checkpoint holds the whole fit.
    n_epochs : int
        Length of the plan.
    verbose : int
        0 is silent, 1 shows a progress bar per member, 2 prints every epoch.
    """

    def __init__(self, estimator, n_members, segments, n_epochs, verbose):
        self.estimator, self.n_members, self.verbose = estimator, n_members, verbose
        self.n_epochs = n_epochs
        # Of a deep ensemble, whose epochs are all alike, there is nothing to tell.
        self.tells_phases = len({segment.name for segment in segments}) > 1
        # Where a resumed fit goes on; None if there is nothing to show a bar of.
        self._start = segments[0].start if segments else None
        self._root = None
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(max_subtasks=len(segments))
            self._root.call_on_fit_task_begin(estimator=estimator)
        self._bar: Any = None
        self._tasks: list[Any] = []
        self._members: dict[int, Any] = {}
        self._offer: dict[str, object] = {}
        self.stop = False

    @contextmanager
    def fit(self):
        """Show the bars while the block runs."""
        with ExitStack() as stack:
            if self.verbose == 1 and self._start is not None:
                self._start_bars(stack)
            yield self
            if self._bar is not None:
                self._bar.refresh()  # in a notebook, leaving does not draw the end
        if self._root is not None:
            self._root.call_on_fit_task_end(estimator=self.estimator)

    def _start_bars(self, stack):
        with needing("rich", "verbose=1"):
            from rich.errors import LiveError
        try:
            self._bar = stack.enter_context(_progress())
        except LiveError:  # before 14.1 a terminal has one display: somebody else's
            return
        self._tasks = [
            self._bar.add_task(
                f"member {i}", total=self.n_epochs, completed=self._start, loss=""
            )
            for i in range(self.n_members)
        ]

    @contextmanager
    def segment(self, segment):
        """Follow one segment; yields the function that engines call every epoch."""
        context = None
        self._members = {}
        if self._root is not None:
            context = self._root.subcontext(
                task_name=segment.name,
                max_subtasks=self.n_members,
                sequential_subtasks=False,
            ).call_on_fit_task_begin(estimator=self.estimator)
        yield lambda member, record: self._epoch(context, segment, member, record)
        for member_context in self._members.values():
            member_context.call_on_fit_task_end(estimator=self.estimator)
        for task in self._tasks:
            self._bar.update(task, completed=segment.stop)
        if context is not None:
            end = context.call_on_fit_task_end
            self.stop |= bool(end(estimator=self.estimator, **self._offer))

    def offer(self, X, y, keep):
        """Let callbacks judge the ensemble at the end of a segment.

        Parameters
        ----------
        X, y
            What ``fit`` was given.
        keep : callable
            Sets the fitted attributes on a copy of the estimator; called only if a
            callback asks for a fitted estimator.
        """

        def attributes():
            twin = copy.copy(self.estimator)
            keep(twin)
            return {k: v for k, v in vars(twin).items() if k.endswith("_")}

        self._offer = {"X": X, "y": y, "reconstruction_attributes": attributes}

    def _epoch(self, context, segment, member, record):
        """One epoch of one member is over; True asks the member to stop."""
        if self.verbose > 1:
            print(_line(member, record))
        if self._bar is not None:
            phase = f", {segment.name}" if self.tells_phases else ""
            self._bar.update(
                self._tasks[member],
                completed=record["epoch"],
                description=f"member {member}{phase}",
                loss=f"loss {record['train_loss']:.4f}",
            )
        if context is None:
            return False
        if member not in self._members:
            self._members[member] = context.subcontext(
                task_name="member",
                task_id=member,
                max_subtasks=segment.stop - segment.start,
            ).call_on_fit_task_begin(estimator=self.estimator)
        epoch = self._members[member].subcontext(task_name="epoch")
        epoch.call_on_fit_task_begin(estimator=self.estimator)
        return bool(epoch.call_on_fit_task_end(estimator=self.estimator))


def _progress():
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
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )


def _line(member, record):
    values = [
        f"{name} {record[name]:.4f}"
        for name in ("train_loss", "valid_loss", "valid_acc", "lr")
        if name in record
    ]
    return f"member {member} epoch {record['epoch']} {record['phase']}: " + ", ".join(
        values
    )
