"""The loop over phases: warm-up, score, select, train on. Plain values in and out."""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.engine.out_of_memory import explain_out_of_memory
from sklearn_sharpbalance.ensemble.caching import cached
from sklearn_sharpbalance.ensemble.plan import Segment, Settings
from sklearn_sharpbalance.exceptions import OutOfDeviceMemoryError
from sklearn_sharpbalance.members import (
    MemberState,
    Phase,
    part_sizes,
    score_member,
)
from sklearn_sharpbalance.members.pruning import pruned_member
from sklearn_sharpbalance.selection.base import check_masks

__all__ = ["EnsembleState", "Trainer", "make_phase"]


@dataclass
class EnsembleState:
    """All there is between two segments: a fit can go on from it anywhere."""

    members: list[MemberState]
    masks: np.ndarray | None = None  # (M, N) bool, once selected
    sharpness: np.ndarray | None = None  # (M, N), once scored
    epoch: int = 0
    phases: list[str] = field(default_factory=list)
    passes: float = 0.0  # over the training samples, all members together


class Trainer:
    """Carries an :class:`EnsembleState` from segment to segment.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members.
    data : TrainingData
    settings : Settings
    scorer : SharpnessScorer
    selector : SubsetSelector
    engine : Engine
    selection_seed : int
        For the selectors that draw.
    any_device : bool, default=False
        Whether members in other processes take the best device there.
    memory : None, str or joblib.Memory
        Where phases and scores are cached.
    watched : bool, default=False
        Whether callbacks are told of epochs and can end them. Such phases are not
        cached: what one callback ended must not be found by a fit without it, and
        what is read from a cache tells no callback anything.
    """

    def __init__(
        self,
        net,
        data,
        settings: Settings,
        *,
        scorer,
        selector,
        engine,
        selection_seed,
        any_device=False,
        memory=None,
        watched=False,
    ):
        self.net, self.data, self.settings = net, data, settings
        self.scorer, self.selector, self.engine = scorer, selector, engine
        self.selection_seed = selection_seed
        # Shared with an engine that has jobs: the data are handed over once. Members
        # that train in this process are scored here too: starting others takes longer.
        self.jobs = getattr(engine, "jobs", None) or MemberJobs(1)
        self.jobs.any_device = any_device
        self._run_phase = _run_phase
        if not watched:
            self._run_phase = cached(memory, _run_phase, ignore=["on_epoch"])
        self._score = cached(memory, _score_members, ignore=["jobs"])

    def run(self, state: EnsembleState, segment: Segment, on_epoch=None):
        """Train all members through one segment; returns the new state."""
        share = self.settings.prune
        if segment.prune and share is not None:
            members = [pruned_member(m, share, self.net) for m in state.members]
            state = replace(state, members=members)
        state = self._select(state, segment) if segment.select else state
        masks = self.masks(state, segment.name)
        phase = self._phase(segment, masks)
        members = self._run_phase(
            self.engine, self.net, state.members, self.data, phase, masks, on_epoch
        )
        return replace(
            state,
            members=members,
            epoch=segment.stop,
            phases=[*state.phases, segment.name],
            passes=state.passes + _passes(state.members, members, masks),
        )

    def _select(self, state, segment):
        self.engine.release()  # scoring needs the memory
        shape = (len(state.members), len(self.data))
        sharpness = np.zeros(shape)
        if self.selector.needs_sharpness:
            sharpness = self._score(
                self.net,
                state.members,
                self.data,
                self.scorer,
                self.settings.precision,
                self.jobs,
            )
        rng = np.random.RandomState((self.selection_seed + segment.start) % 2**32)
        masks = self.selector.select(sharpness, random_state=rng)
        masks = check_masks(masks, shape, f"{type(self.selector).__name__}.select")
        scored = sharpness if self.selector.needs_sharpness else None
        return replace(state, masks=masks, sharpness=scored)

    def masks(self, state, segment_name=None):
        """SAM masks (M, N) of a segment; by default those that applied last."""
        if segment_name != "warmup" and state.masks is not None:
            return state.masks
        shape = (len(state.members), len(self.data))
        return np.full(shape, self.settings.warmup == "sam")

    def _phase(self, segment, masks):
        # Without SAM samples rho means nothing: zeros make such phases equal, so that
        # a search over rho shares them.
        rho = self.settings.rho if masks.any() else (0.0,) * len(masks)
        return make_phase(self.settings, segment, masks, rho)


def make_phase(settings: Settings, segment: Segment, masks, rho) -> Phase:
    """What members must know to train through a segment."""
    prune_epoch, averaging = settings.prune_epoch, settings.averaging
    # Nothing that comes into play later only: a cache finds equal phases.
    averages = averaging and averaging.covers(segment.stop - 1, settings.n_epochs)
    return Phase(
        segment.name,
        segment.start,
        segment.stop,
        settings.n_epochs,
        part_sizes(masks, settings.batch_size),
        rho,
        settings.lr_schedule,
        settings.transform,
        settings.precision,
        settings.compile,
        pruned=prune_epoch is not None and segment.start >= prune_epoch,
        averaging=averaging if averages else None,
    )


def _passes(before, after, masks) -> float:
    """Cost of the epochs that each member has run: samples with SAM pass twice."""
    epochs = [len(b.history) - len(a.history) for a, b in zip(before, after)]
    return float(np.dot(epochs, 1 + masks.mean(axis=1)))


def _run_phase(engine, net, members, data, phase, masks, on_epoch):
    train = partial(engine.run_phase, net, members, data, phase, masks, on_epoch)
    return explain_out_of_memory(train, net, len(members))


def _score_members(net, members, data, scorer, precision, jobs):
    """Sharpness of every sample by every member, (M, N)."""
    each = [(member, scorer, precision) for member in members]
    score = partial(jobs.run, _score_member, net, data, each)
    try:
        return np.stack(explain_out_of_memory(score, net, len(members)))
    except OutOfDeviceMemoryError as error:
        error.add_note(
            "It was the scoring of samples that ran out of memory. Lower "
            "`sharpness__chunk_size`, or take a scorer that needs less, such as "
            "sharpness='loss'."
        )
        raise


def _score_member(net, data, member, scorer, precision):
    return score_member(net, member, data, scorer, precision)
