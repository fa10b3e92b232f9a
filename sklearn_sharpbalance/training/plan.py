"""The plan of a fit: its seeds, its segments, and the state between two of them."""

import inspect
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Integral

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import MemberState
from sklearn_sharpbalance.members.schedules import Segment
from sklearn_sharpbalance.members.weights import epochs_of

RADIUS = 0.05  # of an optimizer without a default
SHORTEST_SEGMENT = 10  # epochs: collecting the members costs some milliseconds


@dataclass
class EnsembleState:
    """State between two segments; a fit can continue from it."""

    members: list[MemberState]
    masks: np.ndarray | None = None  # (M, N), of the last selection
    sharpness: np.ndarray | None = None  # (M, N)
    epoch: int = 0  # number of complete epochs
    phases: list[str] = field(default_factory=list)  # of the complete segments
    epochs: list[int] = field(default_factory=list)  # that each member has run
    passes: float = 0.0  # over the training samples, all members together


@dataclass(frozen=True)
class Seeds:
    """All seeds of a fit, drawn once at its start."""

    members: tuple[int, ...]
    selection: int
    split: int


def draw_seeds(random_state, n_members):
    """Draw seeds from ``random_state``; None uses fresh entropy, not the global RNG."""
    if random_state is None:
        random_state = np.random.RandomState(np.random.MT19937())
    elif not isinstance(random_state, np.random.RandomState):
        random_state = np.random.RandomState(random_state)
    # The members' seeds are drawn last, so that the first members of a larger ensemble
    # equal those of a smaller one.
    split, selection, *members = random_state.randint(2**31 - 1, size=2 + n_members)
    return Seeds(
        members=tuple(map(int, members)), selection=int(selection), split=int(split)
    )


def warmup_length(warmup_epochs, n_epochs):
    """Return the number of warm-up epochs for a count or a fraction.

    Examples
    --------
    >>> warmup_length(0.5, 9), warmup_length(3, 9)
    (4, 3)
    """
    if isinstance(warmup_epochs, Integral):
        if warmup_epochs > n_epochs:
            raise InvalidInputError(
                f"warmup_epochs={warmup_epochs} is more than max_epochs={n_epochs}. "
                "Pass fewer epochs, or a fraction such as 0.5."
            )
        return int(warmup_epochs)
    return epochs_of(warmup_epochs, n_epochs)


def cut_length(n_epochs):
    """Return the epochs after which members are synchronised and saved.

    Ctrl-C loses the epochs since the last cut: a tenth of all epochs, at least ten.

    Examples
    --------
    >>> cut_length(200), cut_length(30)
    (20, 10)
    """
    return max(SHORTEST_SEGMENT, -(-n_epochs // 10))


def is_due(segment, following) -> bool:
    """Whether to write a checkpoint after a segment: at the end of a phase or a cut."""
    ends_phase = following is None or following.select or following.prune
    return bool(ends_phase or segment.stop % cut_length(segment.n_epochs) == 0)


def plan_segments(training, *, n_warmup=0, cut_every=None, prune_epoch=None):
    """Cut the whole training, given as one segment, into segments.

    A joint training has no phases: ``n_warmup`` is None. Cuts do not change the result.
    Members are pruned before ``prune_epoch``, by the fraction ``training.prune``.

    Examples
    --------
    >>> training = Segment(
    ...     name="balanced", start=0, stop=4, n_epochs=4, rho=(0.1,), lr_schedule=float
    ... )
    >>> for segment in plan_segments(training, n_warmup=2):
    ...     print(segment.name, segment.start, segment.stop, segment.select)
    warmup 0 2 False
    balanced 2 4 True
    """
    n_epochs = training.n_epochs
    cuts = {0, n_epochs, n_warmup, prune_epoch}
    cuts.update(range(0, n_epochs, cut_every or n_epochs))
    edges = sorted(cut for cut in cuts if cut is not None)
    return [
        replace(
            training,
            name="warmup" if n_warmup is not None and a < n_warmup else training.name,
            start=a,
            stop=b,
            select=a == n_warmup,
            prune=training.prune if a == prune_epoch else None,
            pruned=prune_epoch is not None and a >= prune_epoch,
        )
        for a, b in pairwise(edges)
    ]


def pruning_epoch(params, n_epochs) -> int | None:
    """Return the epoch before which members are pruned; None without pruning.

    Members are pruned after the warm-up, or half-way if there is no warm-up or no
    epoch after it.
    """
    if not params["prune"]:
        return None
    n_warmup = warmup_length(params["warmup_epochs"], n_epochs)
    return n_warmup if 0 < n_warmup < n_epochs else n_epochs // 2


def remaining(segments: list[Segment], epoch: int) -> list[Segment]:
    """Return the segments of a plan that remain after ``epoch`` epochs.

    Examples
    --------
    >>> common = {"n_epochs": 8, "rho": (0.1,), "lr_schedule": float}
    >>> plan = [
    ...     Segment(name="warmup", start=0, stop=4, **common),
    ...     Segment(name="balanced", start=4, stop=8, select=True, **common),
    ... ]
    >>> [(s.name, s.start, s.stop, s.select) for s in remaining(plan, 5)]
    [('balanced', 5, 8, False)]
    """
    left = [segment for segment in segments if segment.stop > epoch]
    if left and left[0].start < epoch:
        left[0] = replace(left[0], start=epoch, select=False, prune=None)
    return left


def default_rho(optimizer):
    """Return the default radius of a class of sharpness-aware optimizers.

    Examples
    --------
    >>> from sklearn_sharpbalance.optim import MomentumSAM
    >>> default_rho(MomentumSAM)
    0.3
    """
    for kind in optimizer.__mro__:  # an own class may leave it to its base class
        rho = inspect.signature(kind.__init__).parameters.get("rho")
        if rho is not None and rho.default is not rho.empty:
            return rho.default
    return RADIUS


def member_rho(rho, n_members):
    """Return one radius per member for a number or a sequence."""
    try:
        values = np.atleast_1d(np.asarray(rho, dtype=float))
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape not in ((1,), (n_members,)):
        raise InvalidInputError(
            f"rho must be a number, one number per member ({n_members}) or None, got "
            f"{rho!r}."
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise InvalidInputError(f"rho must be finite and >= 0, got {rho!r}.")
    return tuple(np.broadcast_to(values, n_members).tolist())
