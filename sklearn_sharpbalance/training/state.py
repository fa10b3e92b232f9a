"""State of a fit between two segments, and its seeds."""

from dataclasses import dataclass, field

import numpy as np

from sklearn_sharpbalance.members import MemberState

__all__ = ["EnsembleState", "Seeds", "draw_seeds"]


@dataclass
class EnsembleState:
    """State between two segments; a fit can continue from it.

    Attributes
    ----------
    members : list of MemberState
    masks : ndarray of shape (M, N), dtype bool, or None
        SAM masks of the last selection.
    sharpness : ndarray of shape (M, N) or None
        Scores of the last selection.
    epoch : int
        Number of complete epochs.
    phases : list of str
        Name of each complete segment.
    epochs : list of int
        Epochs that each member has run.
    passes : float
        Passes over the training samples, summed over the members.
    """

    members: list[MemberState]
    masks: np.ndarray | None = None
    sharpness: np.ndarray | None = None
    epoch: int = 0
    phases: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    passes: float = 0.0

    @property
    def all_stopped(self) -> bool:
        """Whether callbacks have stopped every member."""
        return all(member.stopped for member in self.members)


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
