"""The plan of a fit: which epochs run under which rule, drawn up before it starts."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.averaging import WeightAveraging, epochs_of

__all__ = [
    "Segment",
    "Settings",
    "cut_length",
    "member_rho",
    "plan_segments",
    "warmup_length",
]

SHORTEST_STRETCH = 5  # epochs: bringing members together costs some milliseconds


@dataclass(frozen=True)
class Segment:
    """Epochs ``start`` to ``stop``.

    Before them ``prune`` sets small weights to zero, and ``select`` draws the SAM sets.
    """

    name: str
    start: int
    stop: int
    select: bool = False
    prune: bool = False


@dataclass(frozen=True)
class Settings:
    """What every phase of a fit has in common."""

    n_epochs: int
    batch_size: int
    rho: tuple[float, ...]
    warmup: str
    lr_schedule: Callable[[float], float]
    transform: Callable[[Any], Any] | None = None
    precision: str = "float32"
    compile: bool | None = None
    prune: float | None = None
    prune_epoch: int | None = None
    averaging: WeightAveraging | None = None


def warmup_length(warmup_epochs, n_epochs):
    """Number of warm-up epochs from a count or a share.

    Examples
    --------
    >>> warmup_length(0.5, 9), warmup_length(3, 9)
    (4, 3)
    """
    if isinstance(warmup_epochs, Integral):
        if warmup_epochs > n_epochs:
            raise InvalidInputError(
                f"warmup_epochs={warmup_epochs} is more than max_epochs={n_epochs}. "
                "Pass fewer epochs, or a share such as 0.5."
            )
        return int(warmup_epochs)
    return epochs_of(warmup_epochs, n_epochs)


def cut_length(n_epochs, checkpoint_every, *, whole_phases):
    """Epochs after which members come together; None lets phases run through.

    Ctrl-C loses what came after, by default a tenth of the training at most.

    Parameters
    ----------
    n_epochs : int
    checkpoint_every : int or None
    whole_phases : bool
        Somebody counts on whole phases: a cache finds them, a callback sees them.

    Examples
    --------
    >>> cut_length(200, None, whole_phases=False)
    20
    >>> cut_length(200, 7, whole_phases=True)
    7
    """
    if checkpoint_every is not None or whole_phases:
        return checkpoint_every
    return max(SHORTEST_STRETCH, -(-n_epochs // 10))


def plan_segments(
    n_epochs, n_warmup, *, reselect_every=None, cut_every=None, prune_epoch=None
):
    """Cut a training into segments.

    Parameters
    ----------
    n_epochs, n_warmup : int
    reselect_every : int or None
        Choose the SAM sets anew every so many balanced epochs.
    cut_every : int or None
        End a segment at least every so many epochs, so that something can look at
        the members in between (early stopping, checkpoints). Members do not notice.
    prune_epoch : int or None
        Prune the members before this epoch.

    Returns
    -------
    segments : list of Segment

    Examples
    --------
    >>> plan_segments(4, 2)
    [Segment(name='warmup', start=0, stop=2, select=False, prune=False),
     Segment(name='balanced', start=2, stop=4, select=True, prune=False)]
    """
    selects = {n_warmup}
    if reselect_every is not None:
        selects.update(range(n_warmup, n_epochs, reselect_every))
    cuts = {0, n_epochs, *selects}
    if cut_every is not None:
        cuts.update(range(0, n_epochs, cut_every))
    if prune_epoch is not None:
        cuts.add(prune_epoch)
    edges = sorted(cut for cut in cuts if cut <= n_epochs)
    return [
        Segment(
            "balanced" if a >= n_warmup else "warmup",
            a,
            b,
            select=a in selects,
            prune=a == prune_epoch,
        )
        for a, b in pairwise(edges)
    ]


def member_rho(rho, n_members):
    """One radius per member from a number or a sequence."""
    try:
        values = np.atleast_1d(np.asarray(rho, dtype=float))
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape not in ((1,), (n_members,)):
        raise InvalidInputError(
            f"rho must be a number or one number per member ({n_members}), got {rho!r}."
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise InvalidInputError(f"rho must be finite and not negative, got {rho!r}.")
    return tuple(np.broadcast_to(values, n_members).tolist())
