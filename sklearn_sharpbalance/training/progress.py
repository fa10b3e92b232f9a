"""Progress of a fit: one line of text and scikit-learn's callbacks."""

import copy
import time
from contextlib import ExitStack, contextmanager
from multiprocessing import parent_process
from typing import Any

import numpy as np

try:  # new in scikit-learn 1.9 and still experimental there
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # pragma: no cover

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replacement for versions of scikit-learn without callbacks."""

    def with_callbacks(method):
        """Return the method unchanged."""
        return method


from sklearn_sharpbalance._parameters import PARAMETERS
from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.selection.rules import selects_all

__all__ = [
    "CallbackSupportMixin",
    "FitProgress",
    "fit_name",
    "has_callbacks",
    "with_callbacks",
]

# Where output is no terminal, a long fit prints a line every so many seconds.
SECONDS_BETWEEN_LINES = 30


def has_callbacks(estimator) -> bool:
    """Whether an estimator has callbacks of scikit-learn."""
    return bool(getattr(estimator, "_skl_callbacks", None))


class FitProgress:
    """Reports the progress of a fit by phases, members and epochs.

    ``segments`` is empty if the fit is complete in a checkpoint. With ``verbose=1`` a
    terminal or notebook shows a progress bar, other output a line every 30 seconds and
    at the end. Worker processes show none, because lines of several fits would mix.
    Callbacks get ``X``, ``y`` and, if they ask for it, a copy of the estimator whose
    fitted attributes ``keep(estimator, state)`` sets. ``stop`` is True after one of
    them has asked to end the fit.
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
        self.phase_names = _phase_names(estimator)
        start = segments[0].start if segments else 0
        self.epochs = [start] * n_members
        self.losses: dict[int, float] = {}  # latest of each member
        self._root: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._prints_lines = False
        self._began = self._last_line = 0.0
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
            if self.verbose == 1 and self.segments and parent_process() is None:
                self._start_line(stack)
            yield self
            if self._bar is not None:
                self._bar.refresh()  # notebooks do not draw the final state on exit
            if self._prints_lines and self.losses:
                self._print_end()
        if self._root is not None:
            self._root.call_on_fit_task_end(estimator=self.estimator)

    def _start_line(self, stack):
        with needing("rich", "verbose=1"):
            from rich.console import Console
            from rich.errors import LiveError
        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            self._prints_lines = True
            self._began = self._last_line = time.monotonic()
            return
        try:
            self._bar = stack.enter_context(_progress())
        except LiveError:  # before rich 14.1 only one display can be shown
            return
        self._task = self._bar.add_task(
            fit_name(self.estimator),
            total=self.n_members * self.n_epochs,
            completed=sum(self.epochs),
            state="",
        )

    def _print_end(self):
        """Print the line of a fit that has ended."""
        members = "1 member" if self.n_members == 1 else f"{self.n_members} members"
        seconds = time.monotonic() - self._began
        print(
            f"{fit_name(self.estimator)}: {members}, {max(self.epochs)} epochs, "
            f"{self._loss()}, {seconds:.1f} s",
            flush=True,
        )

    def _print_state(self, phase):
        """Print the line of a long fit that has not ended."""
        self._last_line = time.monotonic()
        n_done, n_all = sum(self.epochs), self.n_members * self.n_epochs
        print(
            f"{fit_name(self.estimator)}: {n_done} of {n_all} epochs of all members"
            f"{phase}, {self._loss()}",
            flush=True,
        )

    def _loss(self):
        return f"loss {np.mean(list(self.losses.values())):.4f}"

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
        if self._bar is not None:  # members may have stopped before
            self._bar.update(self._task, completed=self.n_members * segment.stop)
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
        name = self.phase_names.get(segment.name, segment.name)
        phase = f", {name}" if self.names_phases else ""
        self.epochs[member] = record["epoch"]
        self.losses[member] = record["train_loss"]
        if self.verbose > 1:
            print(_line(member, record, self.phase_names))
        if self._bar is not None:
            self._bar.update(
                self._task, completed=sum(self.epochs), state=self._loss() + phase
            )
        waited = time.monotonic() - self._last_line
        if self._prints_lines and waited >= SECONDS_BETWEEN_LINES:
            self._print_state(phase)
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


def fit_name(estimator) -> str:
    """Return the name of a fit: the class and the parameters that change the result.

    Examples
    --------
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> fit_name(SharpBalanceEnsembleClassifier(rho=0.2, verbose=1, random_state=0))
    'SharpBalance(rho=0.2)'
    """
    name = type(estimator).__name__.removesuffix("EnsembleClassifier")
    return f"{name}({', '.join(_changed_params(estimator))})"


def _changed_params(estimator):
    """Yield ``name=value`` for parameters that are not their default."""
    params = estimator.get_params(deep=False)
    order = [name for name in PARAMETERS if name in params]
    for name in dict.fromkeys([*order, *params]):
        value = params[name]
        known = PARAMETERS.get(name)
        if name == "random_state" or (known and not known.changes_result):
            continue
        text = " ".join(repr(value).split())
        if known is None or text != repr(known.default):
            yield f"{name}={text if len(text) <= 40 else type(value).__name__}"


def _phase_names(estimator):
    """Return names to show for phases; a SAM ensemble selects all samples."""
    is_sam_ensemble = selects_all(getattr(estimator, "selection", None))
    return {"balanced": "SAM"} if is_sam_ensemble else {}


def _progress():
    with needing("rich", "verbose=1"):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column
    # The name takes the rest of the line, and is cut at its end.
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=rest),
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total} {task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        expand=True,
    )


def _line(member, record, phase_names):
    values = [
        f"{name} {record[name]:.4f}"
        for name in ("train_loss", "valid_loss", "valid_acc", "lr")
        if name in record
    ]
    phase = phase_names.get(record["phase"], record["phase"])
    return f"member {member} epoch {record['epoch']} {phase}: " + ", ".join(values)
