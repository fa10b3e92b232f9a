"""Train the fits of a search together: side by side, from segment to segment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sklearn_sharpbalance.engine.stacked.ensembles import (
    EnsembleSegment,
    groups_of_ensembles,
    train_ensembles,
)
from sklearn_sharpbalance.engine.stacked.members import allows_own_rates
from sklearn_sharpbalance.exceptions import OutOfDeviceMemoryError
from sklearn_sharpbalance.members.session import NO_REPORT, Report
from sklearn_sharpbalance.model_selection.store import ResultStore
from sklearn_sharpbalance.persistence.fingerprint import stable_hash
from sklearn_sharpbalance.runtime.process import own_torch_modes
from sklearn_sharpbalance.runtime.torch_internals import SET_PARAMETERS
from sklearn_sharpbalance.training.display import FitDisplay, open_display
from sklearn_sharpbalance.training.loop import TrainingLoop
from sklearn_sharpbalance.training.prepare import Prepared
from sklearn_sharpbalance.training.trainer import train_members

# Of the samples of a split.
STATISTICS = ("module__mean", "module__scale", "module__pieces")


def train_together(
    fits: list[Prepared], store: ResultStore, on_epochs: Callable[[int], None]
) -> None:
    """Train fits whose members can be stacked, and keep the segments in ``store``.

    The loops of all fits run side by side. Each stops before it trains a segment; then
    the segments of all fits are trained, equal ones once, and the loops continue.
    ``on_epochs`` is called with numbers of trained epochs.
    """
    with own_torch_modes():
        loops = [FitLoop(fit, store) for fit in fits]
        for loop in loops:
            loop.advance()
        while waiting := [loop for loop in loops if loop.request is not None]:
            epoch = min(loop.next_epoch for loop in waiting)
            ready = [loop for loop in waiting if loop.next_epoch == epoch]
            _train_segments(ready, store, on_epochs)
            for loop in ready:
                loop.advance()


@contextmanager
def epochs_bar(text: str, total: int, *, show: bool) -> Iterator[Callable]:
    """Show a progress bar; yield a function that takes numbers of trained epochs."""
    if not show:
        yield lambda n_epochs: None
        return
    with open_display(text) as screen:
        shown = FitDisplay(screen, stops=[total], passes=[1])
        trained = 0

        def advance(n_epochs):
            nonlocal trained
            trained += n_epochs
            shown.reached([0], trained)

        shown.begin()
        yield advance
        shown.end(f"{trained} epochs")


class FitLoop:
    """The training loop of one fit, which stops before each segment."""

    def __init__(self, fit: Prepared, store: ResultStore):
        self.store = store
        self.trainer: Any = fit.trainer
        self.request: Any = None  # state and segment to be trained next; None: the end
        self._steps = _steps(fit)

    @property
    def next_epoch(self) -> int:
        """First epoch of the next segment."""
        return self.request[1].start

    def advance(self) -> None:
        """Run the loop until the next segment, or to its end."""
        try:
            self.request = next(self._steps, None)
        except Exception:  # the evaluation of the fit raises it again
            self.request = None

    def inputs(self) -> tuple[str, EnsembleSegment]:
        """Return the key of the next segment, and what it depends on."""
        inputs = self.trainer.training_inputs(*self.request)
        return self.store.key(train_members, inputs), EnsembleSegment(**inputs)


def _steps(fit):
    loop = TrainingLoop(fit)
    segments = loop.start()
    yield from loop.steps(segments, _NoReport())


class _NoReport:
    """Takes the place of the progress of one fit."""

    stop = False

    @contextmanager
    def fit(self) -> Iterator["_NoReport"]:
        yield self

    @contextmanager
    def segment(self, segment) -> Iterator[Report]:
        yield NO_REPORT

    def selecting(self):
        """Show nothing."""

    def offer(self, state):
        """Do nothing: there are no callbacks."""


def _train_segments(loops, store, on_epochs):
    """Train the next segments of several fits, equal ones once."""
    new: dict[str, EnsembleSegment] = {}
    n_fits: dict[str, int] = {}  # that wait for a segment
    for loop in loops:
        key, inputs = loop.inputs()
        n_fits[key] = n_fits.get(key, 0) + 1
        if not store.has(key):
            new[key] = inputs
    keys, ensembles = list(new), list(new.values())
    groups = groups_of_ensembles(ensembles, [_stacking_key(e) for e in ensembles])
    while groups:
        group = groups.pop(0)
        waiting = sum(n_fits[keys[i]] for i in group)
        try:
            results = train_ensembles(
                [ensembles[i] for i in group], on_epoch=partial(on_epochs, waiting)
            )
        except OutOfDeviceMemoryError:
            half = len(group) // 2
            if half:  # a single fit is trained by its own engine, or raises again
                groups[:0] = [group[:half], group[half:]]
            continue
        for i, result in zip(group, results):
            store.keep(keys[i], _with_epochs(result, ensembles[i].segment))


def _with_epochs(result, segment):
    """Return the result as ``train_members`` does: members, and epochs of each."""
    if isinstance(result, Exception):
        return result
    return result, [segment.stop - segment.start] * len(result)


def _stacking_key(ensemble: EnsembleSegment) -> str:
    """Return a text that is equal for ensembles whose members can be stacked."""
    net, segment = ensemble.net, ensemble.segment
    left_out = {*STATISTICS, SET_PARAMETERS}
    if allows_own_rates(net):
        left_out |= {"lr", "optimizer__weight_decay"}
    params = net.get_params(deep=False)
    settings = {name: value for name, value in params.items() if name not in left_out}
    common = (
        segment.start,
        segment.stop,
        segment.n_epochs,
        segment.lr_schedule,
        segment.precision,
        segment.averaging,
        segment.pruned,
        segment.sizes.n_batches,
    )
    return stable_hash((type(net), sorted(settings.items()), common))
