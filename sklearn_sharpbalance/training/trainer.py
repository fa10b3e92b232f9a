"""Training in phases: score samples, select samples for SAM, train the members."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_memory
from skorch import NeuralNetClassifier

from sklearn_sharpbalance._version import __version__
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.data.training_data import rows_of
from sklearn_sharpbalance.engine.base import Engine, EngineRun
from sklearn_sharpbalance.engine.choice import explain_out_of_memory
from sklearn_sharpbalance.exceptions import (
    DivergenceError,
    InvalidInputError,
    OutOfDeviceMemoryError,
)
from sklearn_sharpbalance.members import MemberState, Segment
from sklearn_sharpbalance.members.inference import check_module, score_net
from sklearn_sharpbalance.members.member_params import own_settings
from sklearn_sharpbalance.members.net import sam_passes
from sklearn_sharpbalance.members.session import NO_REPORT, Report
from sklearn_sharpbalance.members.state import initial_member, restore, state_of
from sklearn_sharpbalance.members.weights import pruned_member
from sklearn_sharpbalance.persistence.fingerprint import by_file, stable_hash
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.selection.rules import (
    NoneSelector,
    SubsetSelector,
    check_masks,
)
from sklearn_sharpbalance.sharpness.base import SharpnessScorer, is_of_package
from sklearn_sharpbalance.training.plan import EnsembleState, Seeds


class PhasedTrainer:
    """Trains members in the segments of a warm-up and a balanced phase.

    ``training`` has the settings of the whole training. The first members start from
    the weights of ``warm_nets``. With ``has_callbacks``, callbacks of scikit-learn can
    end a segment, which is then not cached in ``memory``.
    """

    def __init__(
        self,
        net: NeuralNetClassifier,
        data: TrainingData,
        training: Segment,
        *,
        warmup: str,
        n_warmup: int,
        seeds: Seeds,
        n_classes: int,
        warm_nets: list[NeuralNetClassifier],
        scorer: SharpnessScorer,
        selector: SubsetSelector,
        engine: Engine,
        prune_epoch: int | None = None,
        memory: Any = None,
        has_callbacks: bool = False,
    ):
        self.net, self.data, self.training = net, data, training
        self.warmup, self.n_warmup = warmup, n_warmup
        self.seeds, self.n_classes, self.warm_nets = seeds, n_classes, warm_nets
        self.scorer, self.selector = scorer, selector
        self.engine, self.prune_epoch = engine, prune_epoch
        self.memory, self.has_callbacks = memory, has_callbacks

    def check(self) -> None:
        """Raise if the scorer, the selector or the cache cannot be used."""
        self.scorer.check()
        self.selector.check()
        cached(self.memory, train_members)

    def first_members(self):
        """Return the members before the first epoch."""
        precision = self.training.precision
        together = self.engine.scores_together(self.net, self.scorer, precision)
        selects = self.n_warmup < self.training.n_epochs
        is_tried = selects and self.selector.needs_sharpness and not together
        is_search = hasattr(self.memory, "cached")  # they are not cached on disk
        make = self.memory.cached(first_members) if is_search else first_members
        return make(
            net=self.net,
            seeds=self.seeds,
            data=self.data,
            n_classes=self.n_classes,
            warm_nets=self.warm_nets,
            scorer=self.scorer if is_tried else None,
            precision=precision,
        )

    def open(self, members) -> EngineRun:
        """Return the run that trains these members."""
        return self.engine.open(self.net, members, self.data)

    def prune(self, run: EngineRun, state: EnsembleState, segment: Segment):
        """Set the smallest weights of each member to zero."""
        share = segment.prune or 0.0
        members = [pruned_member(m, share, self.net) for m in state.members]
        run.replace(members)
        return replace(state, members=members)

    def select(self, run: EngineRun, state: EnsembleState, segment: Segment):
        """Score all samples by all members, and select the samples for SAM."""
        run.make_room()
        shape = (len(state.members), len(self.data))
        sharpness = np.zeros(shape)
        if self.selector.needs_sharpness:
            score = cached(self.memory, score_members, ignore=["engine"])
            sharpness = score(
                net=self.net,
                members=state.members,
                data=self.data,
                scorer=self.scorer,
                precision=segment.precision,
                engine=self.engine,
            )  # (M, N)
        rng = np.random.RandomState((self.seeds.selection + segment.start) % 2**32)
        # A copy, because a selector may change the scores in place.
        masks = self.selector.select(sharpness.copy(), random_state=rng)  # (M, N)
        masks = check_masks(masks, shape, f"{type(self.selector).__name__}.select")
        scored = sharpness if self.selector.needs_sharpness else None
        return replace(state, masks=masks, sharpness=scored)

    def train(self, run: EngineRun, state: EnsembleState, segment, report=NO_REPORT):
        """Train all members for a segment and return the new state."""
        inputs = self.training_inputs(state, segment)
        if self.memory is None or self.has_callbacks:
            settings, masks = inputs["segment"], inputs["masks"]
            members, epochs = train_segment(run, settings, masks, report)
        else:
            train = cached(self.memory, train_members, ignore=["engine", "report"])
            members, epochs = train(engine=self.engine, **inputs, report=report)
        before = state.epochs or [0] * len(members)
        more = np.subtract(sam_passes(self.net), 1)  # (M,), or (1,) for all members
        per_epoch = 1 + more * inputs["masks"].mean(axis=1)  # (M,)
        return replace(
            state,
            members=members,
            epoch=segment.stop,
            phases=[*state.phases, segment.name],
            epochs=[n + more for n, more in zip(before, epochs)],
            passes=state.passes + float(np.dot(epochs, per_epoch)),
        )

    def training_inputs(self, state: EnsembleState, segment: Segment) -> dict:
        """Return what the result of a segment depends on, by name."""
        masks = self.masks(state, segment.name)  # (M, N)
        return {
            "net": self.net,
            "members": state.members,
            "data": self.data,
            "segment": segment.with_masks(masks),
            "masks": masks,
        }

    def passes(self, segment: Segment) -> float:
        """Return about how many passes over the samples an epoch takes.

        After the warm-up it is as if all samples got SAM, since the rule has not
        selected them yet.
        """
        uses_sam = not isinstance(self.selector, NoneSelector)
        if segment.name == "warmup":
            uses_sam = self.warmup == "sam"
        return float(np.mean(sam_passes(self.net))) if uses_sam else 1.0

    def masks(self, state: EnsembleState, phase=None) -> np.ndarray:
        """Return the SAM masks (M, N) of a phase; None is the last phase."""
        if phase != "warmup" and state.masks is not None:
            return state.masks
        shape = (len(state.members), len(self.data))
        return np.full(shape, self.warmup == "sam")

    def as_trained(self) -> TrainingData:
        """Return the training data with the augmentation of the training."""
        return replace(self.data, transform=self.training.transform)


def first_members(
    net, seeds: Seeds, data, n_classes, warm_nets, scorer=None, precision="float32"
) -> list[MemberState]:
    """Return the members before training: new, or with the weights of ``warm_nets``.

    Raise if their networks, or the scorer, would fail later.
    """
    members, n_members = [], len(seeds.members)
    tried = scorer if scorer is not None and is_of_package(scorer) else None
    for i, seed in enumerate(seeds.members):
        own, member = initial_member(net, i, seed)
        if i < len(warm_nets):
            _take_weights(member, state_of(warm_nets[i]))
            own = restore(net, member)
        if i == 0 or own_settings(net):
            check = partial(_try_out, own, member, data, n_classes, tried, precision)
            explain_out_of_memory(check, net, n_members)
        members.append(member)
    return members


def _try_out(net, member, data, n_classes, scorer, precision) -> None:
    """Predict and score two samples; scorers of users may need all or have a state."""
    check_module(net, member.seed, data, n_classes)
    if scorer is None:
        return
    few = rows_of(data, np.arange(min(2, len(data))))
    # Scores that are not finite now may be finite after some epochs.
    with suppress(DivergenceError), random_stream(net.device, seed=member.seed):
        score_net(net, member, few, scorer=clone(scorer), precision=precision)


def _take_weights(member, fitted):
    """Copy fitted weights to a member, but not the statistics of the input."""
    weights = {k: v for k, v in fitted.module.items() if k.startswith("module.")}
    for key, value in weights.items():
        if not torch.is_tensor(value):  # the result of get_extra_state
            continue
        if key not in member.module or member.module[key].shape != value.shape:
            raise InvalidInputError(
                f"warm_start=True starts from the fitted weights, but {key!r} has "
                f"shape {tuple(value.shape)}, which does not fit the new network or "
                "data. Set warm_start=False."
            )
    member.module.update(weights)
    own = member.extra.get("buffers", {})
    loose = {  # buffers outside the state dict, if their shape is the same
        k: v
        for k, v in fitted.extra.get("buffers", {}).items()
        if k.startswith("module.") and own.get(k, v).shape == v.shape
    }
    if loose:
        member.extra["buffers"] = own | loose


def train_members(engine, net, members, data, segment, masks, report):
    """Train a segment in a run of its own; return as :func:`train_segment`."""
    with engine.open(net, members, data) as run:
        return train_segment(run, segment, masks, report)


def train_segment(run, segment, masks, report):
    """Return the members after a segment, and the epochs that each has run."""
    members = run.members
    count = EpochCount(len(members), report)
    train = partial(run.train, segment, masks, count)
    trained = explain_out_of_memory(train, run.net, len(members))
    epochs = [
        _epochs_run(segment, before, after, counted)
        for before, after, counted in zip(members, trained, count.epochs)
    ]
    return trained, epochs


class EpochCount(Report):
    """Counts the epochs of each member for another report.

    The history cannot be used for this, because skorch's Checkpoint may shorten it.
    """

    def __init__(self, n_members, report=NO_REPORT):
        self.epochs, self.report = [0] * n_members, report

    def reached(self, members, epochs):
        """Tell the other report."""
        self.report.reached(members, epochs)

    def epoch(self, member, record):
        """Count an epoch of a member; return whether the member should stop."""
        self.epochs[member] += 1
        return bool(self.report.epoch(member, record))


def _epochs_run(segment, before, after, counted) -> int:
    """Return the epochs of a segment that a member has run."""
    if before.stopped:
        return 0
    if not after.stopped:
        return segment.stop - segment.start
    # Epochs in other processes are not counted.
    return counted or max(1, len(after.history) - len(before.history))


def score_members(net, members, data, scorer, precision, engine):
    """Return the sharpness of every sample by every member, (M, N)."""
    score = partial(engine.score, net, members, data, scorer, precision)
    try:
        return explain_out_of_memory(score, net, len(members))
    except OutOfDeviceMemoryError as error:
        error.add_note(
            "Scoring of samples ran out of memory. Lower `sharpness__chunk_size`, "
            "or use a scorer that needs less memory, such as sharpness='loss'."
        )
        raise


def cached(memory, function: Callable, ignore=()) -> Callable:
    """Return a function, to be called with keywords, whose results are cached.

    ``memory`` is a folder, a joblib.Memory, None, or an object with a method
    ``cached(function, ignore)``, such as the store of a search. Arguments in ``ignore``
    do not change the result.
    """
    if hasattr(memory, "cached"):
        return memory.cached(function, ignore)
    try:
        memory = check_memory(memory)
        if getattr(memory, "location", "somewhere") is None:
            return function
        call = memory.cache(_call, ignore=["function", "arguments"])
    except OSError as error:
        raise InvalidInputError(
            f"memory={memory!r} cannot store results: {error}. Pass a folder that can "
            "be written to, or None to disable the cache."
        ) from error

    def cached_function(**arguments):
        relevant = [
            (k, by_file(v)) for k, v in sorted(arguments.items()) if k not in ignore
        ]
        key = stable_hash((__version__, function.__qualname__, relevant))
        return call(key, function, arguments)

    return cached_function


def _call(key, function, arguments):
    return function(**arguments)
