"""The loop over phases: warm-up, score, select, train on. Plain values in and out."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from sklearn.base import clone

from sklearn_sharpbalance.data.batches import part_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.data.validation_split import rows_of
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.engine.out_of_memory import explain_out_of_memory
from sklearn_sharpbalance.exceptions import DivergenceError, OutOfDeviceMemoryError
from sklearn_sharpbalance.members import MemberState, Phase, score_member
from sklearn_sharpbalance.members.net import with_plain_sam
from sklearn_sharpbalance.members.own_settings import own_settings
from sklearn_sharpbalance.members.pruning import pruned_member
from sklearn_sharpbalance.members.state import own_draws
from sklearn_sharpbalance.selection.base import check_masks
from sklearn_sharpbalance.sharpness.base import FunctionScorer
from sklearn_sharpbalance.training.caching import cached
from sklearn_sharpbalance.training.plan import Segment, Settings

__all__ = ["EnsembleState", "EpochCount", "Trainer", "make_phase"]


@dataclass
class EnsembleState:
    """All there is between two segments: a fit can go on from it anywhere."""

    members: list[MemberState]
    masks: np.ndarray | None = None  # (M, N) bool, once selected
    sharpness: np.ndarray | None = None  # (M, N), once scored
    epoch: int = 0
    phases: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)  # that each member has run
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
        self._train = _train_phase
        if not watched:
            self._train = cached(memory, _train_phase, ignore=["on_epoch"])
        # A search over kinds of SAM shares what was trained before any sample got it.
        self._plain_net = net if memory is None else with_plain_sam(net)
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
        plain = segment.name == "warmup" and self.settings.warmup == "sgd"
        net = self._plain_net if plain else self.net
        members, epochs = self._train(
            self.engine, net, state.members, self.data, phase, masks, on_epoch
        )
        before = state.epochs or [0] * len(members)
        return replace(
            state,
            members=members,
            epoch=segment.stop,
            phases=[*state.phases, segment.name],
            epochs=[n + more for n, more in zip(before, epochs)],
            # Samples with SAM pass twice.
            passes=state.passes + float(np.dot(epochs, 1 + masks.mean(axis=1))),
        )

    def try_scoring(self, members) -> None:
        """Raise now, not after the warm-up, if networks are none that can be scored.

        Only a scorer of this package is tried, on two samples: another one may count
        on all of them, or keep something.
        """
        ours = type(self.scorer).__module__.startswith("sklearn_sharpbalance.")
        ours = ours and not isinstance(self.scorer, FunctionScorer)
        if not (ours and self.selector.needs_sharpness):
            return
        few = rows_of(self.data, np.arange(min(2, len(self.data))))
        for member in members if own_settings(self.net) else members[:1]:
            given = (member, few, clone(self.scorer), self.settings.precision)
            score = partial(score_member, self.net, *given)
            # Scores that are not finite here may be so after some epochs.
            draws = own_draws(member.seed, self.net.device)
            with suppress(DivergenceError), draws:
                explain_out_of_memory(score, self.net, len(members))

    def as_trained(self) -> TrainingData:
        """The data as members normalised them, for what is made of their weights."""
        return replace(self.data, transform=self.settings.transform)

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
        # A copy: a rule may work in place, and the scores are kept.
        masks = self.selector.select(sharpness.copy(), random_state=rng)
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


def _train_phase(engine, net, members, data, phase, masks, on_epoch):
    """Members after a phase, and how many epochs of it each has run."""
    heard = EpochCount(len(members), on_epoch)
    train = partial(engine.run_phase, net, members, data, phase, masks, heard)
    trained = explain_out_of_memory(train, net, len(members))
    epochs = map(partial(_epochs_run, phase), members, trained, heard.epochs)
    return trained, list(epochs)


class EpochCount:
    """Counts the epochs of each member and passes on what is told of them.

    A history does not tell how many there were: skorch's Checkpoint may cut it.
    """

    def __init__(self, n_members, on_epoch=None):
        self.epochs, self.on_epoch = [0] * n_members, on_epoch

    def __call__(self, member, record):
        """One more epoch of a member; True asks it to stop."""
        self.epochs[member] += 1
        return self.on_epoch is not None and bool(self.on_epoch(member, record))


def _epochs_run(phase, before, after, heard) -> int:
    """Epochs of a phase that a member has run."""
    if before.stopped:
        return 0
    if not after.stopped:
        return phase.stop - phase.start
    # Epochs in other processes are not heard.
    return heard or max(1, len(after.history) - len(before.history))


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
