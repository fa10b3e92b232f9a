"""Progress of a fit: what it prints or shows, and scikit-learn's callbacks."""

import copy
import inspect
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import parent_process
from typing import Any

try:  # new in scikit-learn 1.9 and still experimental there
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # pragma: no cover

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replacement for versions of scikit-learn without callbacks."""

    def with_callbacks(method):
        """Return the method unchanged."""
        return method


from sklearn_sharpbalance._parameters import PARAMETERS
from sklearn_sharpbalance.members.member_params import own_nets
from sklearn_sharpbalance.members.session import Report
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.selection.rules import selects_all
from sklearn_sharpbalance.training.display import FitDisplay, open_display


def has_callbacks(estimator) -> bool:
    """Whether an estimator has callbacks of scikit-learn."""
    return bool(getattr(estimator, "_skl_callbacks", None))


class FitProgress(Report):
    """Reports the progress of a fit by phases, members and epochs.

    ``segments`` is empty if the fit is complete in a checkpoint. Worker processes show
    nothing, because lines of several fits would mix. Callbacks get ``X``, ``y`` and, if
    they ask for it, a copy of the estimator with its fitted attributes. ``stop`` is
    True after one of them has asked to end the fit. Engines report to this object.
    """

    def __init__(self, estimator, prepared, segments, *, X, y):
        self.estimator, self.prepared, self.segments = estimator, prepared, segments
        self.n_members = len(prepared.seeds.members)
        self.X, self.y = X, y
        self.stop = False
        # Do not show the name of the only phase of a deep ensemble.
        self.names_phases = len({segment.name for segment in segments}) > 1
        # A SAM ensemble selects all samples.
        is_sam_ensemble = selects_all(getattr(estimator, "selection", None))
        self.phase_names = {"balanced": "SAM"} if is_sam_ensemble else {}
        self.last_epoch = 0  # of the member that has trained longest
        self._root: Any = None
        self._display: FitDisplay | None = None
        self._segment: Any = None
        self._context: Any = None  # of the segment
        self._members: dict[int, Any] = {}
        self._offer: dict[str, object] = {}

    @contextmanager
    def fit(self):
        """Call callbacks before and after the fit, and show its progress."""
        if hasattr(self.estimator, "_init_callback_context"):
            n_segments = len(self.segments)
            self._root = self.estimator._init_callback_context(max_subtasks=n_segments)
            self._root.call_on_fit_task_begin(estimator=self.estimator)
        with ExitStack() as stack:
            if self.segments and _shows_progress(self.prepared):
                screen = stack.enter_context(open_display(fit_name(self.estimator)))
                self._display = self._display_on(screen)
                self._display.begin()
            yield self
            if self._display is not None:
                # Jobs and caches do not report epochs.
                n_epochs = self.last_epoch or self.segments[-1].stop
                self._display.end(f"{_members(self.prepared)}, {n_epochs} epochs")
        if self._root is not None:
            self._root.call_on_fit_task_end(estimator=self.estimator)

    def _display_on(self, screen):
        plan, trainer = self.prepared.plan, self.prepared.trainer
        return FitDisplay(
            screen,
            stops=[segment.stop for segment in plan],
            passes=[trainer.passes(segment) for segment in plan],
            n_members=self.n_members,
            start=self.segments[0].start,
        )

    @contextmanager
    def segment(self, segment):
        """Report a segment; yield the report for engines."""
        self._segment, self._context, self._members = segment, None, {}
        if self._root is not None:
            self._context = self._root.subcontext(
                task_name=segment.name,
                max_subtasks=self.n_members,
                sequential_subtasks=False,
            ).call_on_fit_task_begin(estimator=self.estimator)
        if self._display is not None:
            name = self.phase_names.get(segment.name, segment.name)
            self._display.phase = name if self.names_phases else ""
        yield self
        for member_context in self._members.values():
            member_context.call_on_fit_task_end(estimator=self.estimator)
        self.reached(range(self.n_members), segment.stop)  # jobs do not report it
        if self._context is not None:
            end = self._context.call_on_fit_task_end
            self.stop |= bool(end(estimator=self.estimator, **self._offer))

    def selecting(self):
        """Show that samples are selected."""
        if self._display is not None:
            self._display.selecting()

    def offer(self, state):
        """Pass the ensemble to callbacks at the end of a segment."""

        def attributes():
            fitted = copy.copy(self.estimator)
            fitted._keep(self.prepared, state)
            return {k: v for k, v in vars(fitted).items() if k.endswith("_")}

        self._offer = {
            "X": self.X,
            "y": self.y,
            "reconstruction_attributes": attributes,
        }

    def reached(self, members, epochs):
        """Show how many epochs some members have trained."""
        if self._display is not None:
            self._display.reached(members, epochs)

    def epoch(self, member, record):
        """Report an epoch of a member; return whether the member should stop."""
        self.last_epoch = max(self.last_epoch, record["epoch"])
        if self._display is not None:
            self._display.losses[member] = record["train_loss"]
        if self.prepared.params["verbose"] > 1:
            print(_line(member, record, self.phase_names))
        if self._context is None:
            return False
        if member not in self._members:
            self._members[member] = self._context.subcontext(
                task_name="member",
                task_id=member,
                max_subtasks=self._segment.stop - self._segment.start,
            ).call_on_fit_task_begin(estimator=self.estimator)
        epoch = self._members[member].subcontext(task_name="epoch")
        epoch.call_on_fit_task_begin(estimator=self.estimator)
        return bool(epoch.call_on_fit_task_end(estimator=self.estimator))


def announce(estimator, prepared) -> None:
    """Print what a fit with ``verbose=1`` will train, before it trains."""
    if not _shows_progress(prepared):
        return
    trainer, fmt = prepared.trainer, prepared.input_format
    parts = [
        ", ".join(dict.fromkeys(map(_network_name, own_nets(trainer.net)))),
        _members(prepared),
        f"{trainer.training.n_epochs} epochs",
        f"{len(trainer.data):,} {'images' if fmt.kind == 'images' else 'samples'}",
        f"device {', '.join(resolve_devices(prepared.params['device']))}",
        f"engine {prepared.engine.name}",
    ]
    print(f"{fit_name(estimator)}: {', '.join(parts)}", flush=True)


def _shows_progress(prepared) -> bool:
    """Whether a fit shows its progress: not in worker processes.

    A search trains the stacked members of its fits before, below one bar.
    """
    in_search = hasattr(prepared.trainer.memory, "cached")
    trained_before = in_search and prepared.engine.name == "stacked"
    is_shown = prepared.params["verbose"] == 1 and not trained_before
    return is_shown and parent_process() is None


def _members(prepared) -> str:
    n_members = len(prepared.seeds.members)
    return "1 member" if n_members == 1 else f"{n_members} members"


def _network_name(net) -> str:
    """Return the name of a member's network, and its width if it has one."""
    network, width = net.module__module, getattr(net, "module__width", None)
    if width is None and isinstance(network, partial | type):
        parameters = inspect.signature(network).parameters
        width = parameters["width"].default if "width" in parameters else None
    while isinstance(network, partial):
        network = network.func
    name = getattr(network, "__name__", type(network).__name__)
    return f"{name} of width {width}" if isinstance(width, int) else name


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


def _line(member, record, phase_names):
    values = [
        f"{name} {record[name]:.4f}"
        for name in ("train_loss", "valid_loss", "valid_acc", "lr")
        if name in record
    ]
    phase = phase_names.get(record["phase"], record["phase"])
    return f"member {member} epoch {record['epoch']} {phase}: " + ", ".join(values)
