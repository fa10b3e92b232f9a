"""Members of several ensembles in one batched computation, for a search."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.choice import choose_threads, explain_out_of_memory
from sklearn_sharpbalance.engine.stacked.engine import StackedGroup
from sklearn_sharpbalance.engine.stacked.members import stacked_sessions
from sklearn_sharpbalance.engine.stacked.network import in_step
from sklearn_sharpbalance.engine.support import meta_module
from sklearn_sharpbalance.exceptions import DivergenceError
from sklearn_sharpbalance.members import MemberState, Segment
from sklearn_sharpbalance.runtime.process import torch_threads

__all__ = ["EnsembleSegment", "groups_of_ensembles", "train_ensembles"]

# On a CPU, more members in one product do not make a step of a member faster.
MOST_ON_CPU = 64
# Places of a batch, in relation to those of the smallest batch. Padding is computed:
# on a GPU, small products take the same time with it.
MOST_PADDING = {"cpu": 1.1, "cuda": 2.0}
COPIES_OF_WEIGHTS = 6  # weights, gradients of both parts, momentum, perturbation
COPIES_OF_OUTPUTS = 4  # of every layer: forward, backward, and their inputs


@dataclass(frozen=True)
class EnsembleSegment:
    """An ensemble and the segment that it trains through.

    Attributes
    ----------
    net : NeuralNetClassifier
        Settings shared by the members.
    members : list of MemberState
    data : TrainingData
    segment : Segment
        With the sizes of its batches.
    masks : ndarray of shape (M, N), dtype bool
    """

    net: Any
    members: list[MemberState]
    data: TrainingData
    segment: Segment
    masks: np.ndarray

    @property
    def kinds_of_parts(self) -> tuple[bool, bool]:
        """Whether batches have samples with SAM, and samples without."""
        sizes = self.segment.sizes
        return sizes.sam > 0, sizes.normal > 0

    @cached_property
    def member_bytes(self) -> int:
        """Estimated memory of one stacked member, without data."""
        module = meta_module(self.net)
        weights, outputs = 0, 0
        for weight in module.parameters():
            weights += weight.numel()
            outputs += weight.shape[0] if weight.ndim > 1 else 0
        places = self.segment.sizes.sam + self.segment.sizes.normal
        n_values = COPIES_OF_WEIGHTS * weights + COPIES_OF_OUTPUTS * places * outputs
        return 4 * n_values


def groups_of_ensembles(
    ensembles: list[EnsembleSegment], keys: list[str], memory: float | None = None
) -> list[list[int]]:
    """Group the positions of ensembles that train in one computation.

    Parameters
    ----------
    ensembles : list of EnsembleSegment
    keys : list of str
        Equal for ensembles whose members can be stacked.
    memory : float or None, default=None
        Bytes for one group; None is half of the free memory of the device.

    Returns
    -------
    groups : list of list of int
        Ensembles of a group have similar numbers of samples for SAM in a batch, so
        that little has to be padded.
    """
    by_key: dict[tuple, list[int]] = {}
    for i, (ensemble, key) in enumerate(zip(ensembles, keys)):
        by_key.setdefault((key, ensemble.kinds_of_parts), []).append(i)
    groups: list[list[int]] = []
    for positions in by_key.values():
        device = torch.device(ensembles[positions[0]].net.device)
        limits = _Limits.of(device, memory)
        group: list[int] = []
        for i in sorted(positions, key=lambda i: ensembles[i].segment.sizes.sam):
            larger = [ensembles[j] for j in group] + [ensembles[i]]
            if group and not limits.allow(larger):
                groups.append(group)
                group = []
            group.append(i)
        groups.append(group)
    return groups


class _Limits(NamedTuple):
    """What a group of stacked ensembles may take."""

    n_members: float
    padding: float
    memory: float

    @classmethod
    def of(cls, device, memory):
        return cls(
            n_members=MOST_ON_CPU if device.type == "cpu" else float("inf"),
            padding=MOST_PADDING.get(device.type, MOST_PADDING["cpu"]),
            memory=free_memory(device) / 2 if memory is None else memory,
        )

    def allow(self, ensembles: list[EnsembleSegment]) -> bool:
        """Whether these ensembles may be one group."""
        n_members = sum(len(ensemble.members) for ensemble in ensembles)
        sizes = [ensemble.segment.sizes for ensemble in ensembles]
        widest = max(size.sam for size in sizes) + max(size.normal for size in sizes)
        narrowest = min(size.sam + size.normal for size in sizes)
        samples = {id(e.data): 4 * e.data.X.size for e in ensembles}  # float32
        needed = n_members * ensembles[0].member_bytes + sum(samples.values())
        return (
            n_members <= self.n_members
            and widest <= self.padding * narrowest
            and needed <= self.memory
        )


def free_memory(device: torch.device) -> float:
    """Return the free memory of a device in bytes; infinity if it is not known."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # not on every platform
        return float("inf")


def train_ensembles(
    ensembles: list[EnsembleSegment],
    on_epoch: Callable[[], object] | None = None,
) -> list[list[MemberState] | DivergenceError]:
    """Train all ensembles in one computation.

    Parameters
    ----------
    ensembles : list of EnsembleSegment
        Those of one group of :func:`groups_of_ensembles`. Their nets have no callbacks.
    on_epoch : callable, default=None
        Called after every epoch.

    Returns
    -------
    results : list
        For each ensemble its new members, or the error if one of them diverged. Other
        ensembles are not affected by it.
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
    for positions in in_step([session.state for session in sessions]):
        group = _GroupOfEnsembles(
            [sessions[i] for i in positions],
            [masks[i] for i in positions],
            [owners[i] for i in positions],
            on_epoch,
        )
        for i, member in zip(positions, group.train()):
            if owners[i] not in group.errors:
                results[owners[i]][member.index] = member
        for owner, error in group.errors.items():
            results[owner] = error
    return results


class _GroupOfEnsembles(StackedGroup):
    """Stacked members of several ensembles, which diverge independently.

    Parameters
    ----------
    sessions, masks
        As in :class:`StackedGroup`.
    owners : list of int
        The ensemble of each member.
    on_epoch : callable or None
    """

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
