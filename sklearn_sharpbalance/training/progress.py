"""Progress of a fit: progress bars and scikit-learn's callbacks."""

import copy
from contextlib import ExitStack, contextmanager
from typing import Any

try:  # new in scikit-learn 1.9 and still experimental there
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # pragma: no cover

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replacement for versions of scikit-learn without callbacks."""

    def with_callbacks(method):
        """Return the method unchanged."""
        return method


from sklearn_sharpbalance._validation import needing

__all__ = [
    "CallbackSupportMixin",
    "FitProgress",
    "has_callbacks",
    "with_callbacks",
]


def has_callbacks(estimator) -> bool:
    """Whether an estimator has callbacks of scikit-learn."""
    return bool(getattr(estimator, "_skl_callbacks", None))


class FitProgress:
    """Reports the progress of a fit by phases, members and epochs.

    Parameters
    ----------
    estimator : estimator instance
        Its callbacks are called.
    segments : list of Segment
        Remaining segments of the plan; empty if the fit is complete in a checkpoint.
    n_members, n_epochs : int
    verbose : int
        0 is silent, 1 shows a progress bar per member, 2 prints every epoch.
    X, y
        Arguments of ``fit``, passed to callbacks.
    keep : callable
        ``keep(estimator, state)`` sets the fitted attributes of a copy of the
        estimator; called only if a callback asks for a fitted estimator.

    Attributes
    ----------
    stop : bool
        Whether a callback has asked to end the fit.
    """

    def __init__(
        self, estimator, segments, *, n_members, n_epochs, verbose, X, y, keep
    ):
        self.estimator, self.segments = estimator, segments
        self.n_members, self.n_epochs, self.verbose = n_members, n_epochs, verbose
        self.X, self.y, self.keep = X, y, keep
        self.stop = False
        # Do not show the name of the only phase of a deep ensemble.
        self.names_phases = len({segment.name for segment in segments}) > 1
        self._root: Any = None
        self._bar: Any = None
        self._tasks: list[Any] = []
        self._members: dict[int, Any] = {}
        self._offer: dict[str, object] = {}

    @contextmanager
    def fit(self):
        """Call callbacks before and after the fit, and show the bars during it."""
        if hasattr(self.estimator, "_init_callback_context"):
            n_segments = len(self.segments)
            self._root = self.estimator._init_callback_context(max_subtasks=n_segments)
            self._root.call_on_fit_task_begin(estimator=self.estimator)
        with ExitStack() as stack:
            if self.verbose == 1 and self.segments:
                self._start_bars(stack)
            yield self
            if self._bar is not None:
                self._bar.refresh()  # notebooks do not draw the final state on exit
        if self._root is not None:
            self._root.call_on_fit_task_end(estimator=self.estimator)

    def _start_bars(self, stack):
        with needing("rich", "verbose=1"):
            from rich.errors import LiveError
        try:
            self._bar = stack.enter_context(_progress())
        except LiveError:  # before rich 14.1 only one display can be shown
            return
        self._tasks = [
            self._bar.add_task(
                f"member {i}",
                total=self.n_epochs,
                completed=self.segments[0].start,
                loss="",
            )
            for i in range(self.n_members)
        ]

    @contextmanager
    def segment(self, segment):
        """Report a segment; yield the function that engines call after every epoch."""
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

    def offer(self, state):
        """Pass the ensemble to callbacks at the end of a segment."""

        def attributes():
            fitted = copy.copy(self.estimator)
            self.keep(fitted, state)
            return {k: v for k, v in vars(fitted).items() if k.endswith("_")}

        self._offer = {
            "X": self.X,
            "y": self.y,
            "reconstruction_attributes": attributes,
        }

    def _epoch(self, context, segment, member, record):
        """Report an epoch of a member; return whether the member should stop."""
        if self.verbose > 1:
            print(_line(member, record))
        if self._bar is not None:
            phase = f", {segment.name}" if self.names_phases else ""
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
