"""Members of several ensembles in one batched computation, for a search."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.choice import choose_threads, explain_out_of_memory
from sklearn_sharpbalance.engine.stacked.engine import StackedGroup
from sklearn_sharpbalance.engine.stacked.members import stacked_sessions
from sklearn_sharpbalance.engine.stacked.network import check_in_step
from sklearn_sharpbalance.engine.support import meta_module
from sklearn_sharpbalance.exceptions import DivergenceError
from sklearn_sharpbalance.members import MemberState, Segment
from sklearn_sharpbalance.runtime.devices import free_memory
from sklearn_sharpbalance.runtime.process import torch_threads

__all__ = ["EnsembleSegment", "groups_of_ensembles", "train_ensembles"]

# On a CPU, more members in one product do not make a step of a member faster.
MOST_ON_CPU = 64
# Width of a batch, in relation to the narrowest batch, and places more. Padding is
# computed: small products take the same time with it, and so do most on a GPU.
MOST_PADDING = {"cpu": 1.1, "cuda": 2.0}
MORE_PLACES = 8
COPIES_OF_WEIGHTS = 6  # weights, gradients, momentum, perturbation and their copies
COPIES_OF_OUTPUTS = 4  # of every layer: forward, backward, and their inputs


@dataclass(frozen=True)
class EnsembleSegment:
    """An ensemble and the segment that it trains through; masks are (M, N)."""

    net: Any
    members: list[MemberState]
    data: TrainingData
    segment: Segment
    masks: np.ndarray

    @cached_property
    def member_bytes(self) -> int:
        """Estimated memory of one stacked member, without data."""
        weights, outputs = 0, 0
        for weight in meta_module(self.net).parameters():
            weights += weight.numel()
            outputs += weight.shape[0] if weight.ndim > 1 else 0
        width = self.segment.sizes.width
        return 4 * (COPIES_OF_WEIGHTS * weights + COPIES_OF_OUTPUTS * width * outputs)


def groups_of_ensembles(
    ensembles: list[EnsembleSegment], keys: list[str], memory: float | None = None
) -> list[list[int]]:
    """Group the positions of ensembles that train in one computation.

    Ensembles with equal keys can be stacked. Those of a group have batches of similar
    width, so that little has to be padded, and fit the memory in bytes; None is half of
    the free memory of the device.
    """
    by_key: dict[tuple, list[int]] = {}
    for i, (ensemble, key) in enumerate(zip(ensembles, keys)):
        sizes = ensemble.segment.sizes
        # An optimizer with a state of its own needs the same steps with SAM.
        n_sam = sizes.n_sam if ensemble.net.optimizer.own_state_names else -1
        kind = (key, n_sam, sizes.n_sam > 0)
        by_key.setdefault(kind, []).append(i)
    groups: list[list[int]] = []
    for positions in by_key.values():
        room = memory
        if room is None:
            room = free_memory(torch.device(ensembles[positions[0]].net.device)) / 2
        group: list[int] = []
        for i in sorted(positions, key=lambda i: ensembles[i].segment.sizes.width):
            if group and not _go_together([ensembles[j] for j in (*group, i)], room):
                groups.append(group)
                group = []
            group.append(i)
        groups.append(group)
    return groups


def _go_together(ensembles: list[EnsembleSegment], memory: float) -> bool:
    """Whether ensembles may be one group."""
    device = torch.device(ensembles[0].net.device).type
    n_members = sum(len(ensemble.members) for ensemble in ensembles)
    widths = [ensemble.segment.sizes.width for ensemble in ensembles]
    most = MOST_PADDING.get(device, MOST_PADDING["cpu"]) * min(widths) + MORE_PLACES
    samples = {id(e.data): 4 * e.data.X.size for e in ensembles}  # float32
    return (
        (device != "cpu" or n_members <= MOST_ON_CPU)
        and max(widths) <= most
        and n_members * ensembles[0].member_bytes + sum(samples.values()) <= memory
    )


def train_ensembles(
    ensembles: list[EnsembleSegment],
    on_epoch: Callable[[], object] | None = None,
) -> list[list[MemberState] | DivergenceError]:
    """Train one group of :func:`groups_of_ensembles`, whose nets have no callbacks.

    Return for each ensemble its new members, or the error if one of them diverged;
    other ensembles are not affected by it. Call ``on_epoch`` after every epoch.
    """
    net, segment = ensembles[0].net, ensembles[0].segment
    n_members = sum(len(ensemble.members) for ensemble in ensembles)
    threads = choose_threads(net, segment.batch_size, n_members)
    with torch_threads(threads):
        return explain_out_of_memory(
            lambda: _train(ensembles, on_epoch), net, n_members
        )


def _train(ensembles, on_epoch):
    owners, sessions, masks = [], [], []
    for i, ensemble in enumerate(ensembles):
        owners += [i] * len(ensemble.members)
        sessions += stacked_sessions(
            ensemble.net, ensemble.members, ensemble.data, ensemble.segment
        )
        masks += list(ensemble.masks)
    results: list[Any] = [[None] * len(ensemble.members) for ensemble in ensembles]
    check_in_step([session.state for session in sessions])
    group = _GroupOfEnsembles(sessions, masks, owners, on_epoch)
    for owner, member in zip(owners, group.train()):
        if owner not in group.errors:
            results[owner][member.index] = member
    for owner, error in group.errors.items():
        results[owner] = error
    return results


class _GroupOfEnsembles(StackedGroup):
    """Stacked members of several ensembles, ``owners``, which diverge independently."""

    def __init__(self, sessions, masks, owners, on_epoch):
        super().__init__(sessions, masks)
        self.owners, self.on_epoch = owners, on_epoch
        self.errors: dict[int, DivergenceError] = {}

    def epoch(self, epoch):
        """Train all members for one epoch, and report it."""
        super().epoch(epoch)
        if self.on_epoch is not None:
            self.on_epoch()

    def end_member_epoch(self, i, epoch, loss, lr):
        """Write the record of one member; stop its ensemble if it diverged."""
        try:
            super().end_member_epoch(i, epoch, loss, lr)
        except DivergenceError as error:
            self.errors.setdefault(self.owners[i], error)
            for owner, session in zip(self.owners, self.sessions):
                if owner == self.owners[i]:
                    session.stopped = True
