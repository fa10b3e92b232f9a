"""Learning-rate schedules as functions of progress, and segments of a training.

A schedule is a pure function of the fraction of training that is done. It has no state,
so a fit in several segments, or a resumed fit, follows the same curve.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.data.batches import BatchSizes, batch_sizes
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.weights import WeightAveraging

__all__ = [
    "LR_SCHEDULES",
    "Segment",
    "check_factors",
    "constant",
    "cosine",
    "one_cycle",
    "paper_steps",
    "resolve",
]

CHECKED_STEPS = 10_000  # evenly spaced in the training; takes some milliseconds
NO_SIZES = BatchSizes(0, 0, sam_width=0, normal_width=0)  # before masks are known
OF_PHASE = ("name", "rho", "averaging", "sizes")  # may change from phase to phase


def constant(progress: float) -> float:
    """Return the factor one."""
    return 1.0


def paper_steps(progress: float) -> float:
    """Divide by ten at one half and again at three quarters, as the paper does.

    Examples
    --------
    >>> [paper_steps(p) for p in (0.0, 0.5, 0.75)]
    [1.0, 0.1, 0.01]
    """
    return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01


def cosine(progress: float) -> float:
    """Follow half a cosine from one to zero.

    Examples
    --------
    >>> round(cosine(0.5), 6)
    0.5
    """
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def one_cycle(progress: float) -> float:
    """Rise from 1/25 to one over the first 30 %, then fall to 1/1e4, as cosines.

    Examples
    --------
    >>> one_cycle(0.3)
    1.0
    """
    start, end, peak = 1 / 25, 1e-4, 0.3
    if progress < peak:
        return start + (1 - start) * (1 - cosine(progress / peak))
    return end + (1 - end) * cosine((progress - peak) / (1 - peak))


LR_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "steps": paper_steps,
    "cosine": cosine,
    "one_cycle": one_cycle,
}


def resolve(value) -> Callable[[float], float]:
    """Return the schedule of a name; return a function unchanged."""
    if callable(value):
        return value
    try:
        return LR_SCHEDULES[value]
    except (KeyError, TypeError):
        names = ", ".join(map(repr, LR_SCHEDULES))
        raise InvalidInputError(
            f"Unknown lr_schedule {value!r}. Choose one of {names}, or pass a function "
            "of progress in [0, 1), or a skorch LRScheduler."
        ) from None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Settings for the training of members from one epoch to another.

    The plan of a fit is a list of segments: a phase (warm-up, balanced) is split before
    selections, at checkpoints, and at epochs at which a callback reads the members.

    Attributes
    ----------
    name : {"warmup", "balanced", "joint"}
        The phase.
    start, stop : int
        First epoch, and the epoch after the last.
    n_epochs : int
        Length of the whole training, for the learning rate.
    batch_size : int
    rho : tuple of float
        Radius of the perturbation for each member.
    lr_schedule : callable
        Maps progress in [0, 1) to a factor of the learning rate.
    transform : callable or None
        Augmentation of a batch on the device.
    precision : {"float32", "tf32", "bf16", "fp16"}
    compile : bool or None
        Whether to use torch.compile; None lets the engine choose.
    averaging : WeightAveraging or None
    select : bool
        Whether samples for SAM are selected before the first epoch.
    prune : float or None
        Fraction of the weights that is set to zero before the first epoch.
    pruned : bool
        Whether weights that are zero at the start stay zero.
    sizes : BatchSizes
        Number and width of the batches, set by :meth:`with_masks`.
    """

    name: str
    start: int
    stop: int
    n_epochs: int
    lr_schedule: Callable[[float], float]
    rho: tuple[float, ...]
    batch_size: int = 128
    transform: Callable[[Any], Any] | None = None
    precision: str = "float32"
    compile: bool | None = None
    averaging: WeightAveraging | None = None
    select: bool = False
    prune: float | None = None
    pruned: bool = False
    sizes: BatchSizes = NO_SIZES

    @property
    def last(self) -> bool:
        """Whether the training ends with this segment."""
        return self.stop >= self.n_epochs

    def with_masks(self, masks) -> "Segment":
        """Return the segment for an engine, given SAM masks (M, N).

        Settings without an effect in these epochs are removed, so that a cache finds
        equal trainings: ``rho`` without SAM samples, an average that starts later.
        """
        averaging = self.averaging
        if averaging is not None and not averaging.covers(self.stop - 1, self.n_epochs):
            averaging = None
        return replace(
            self,
            rho=self.rho if masks.any() else (0.0,) * len(masks),
            averaging=averaging,
            select=False,
            prune=None,
            sizes=batch_sizes(masks, self.batch_size),
        )

    def continues(self, previous: "Segment", *, new_phase: bool = False) -> bool:
        """Whether this segment follows another one with the same settings.

        With ``new_phase``, settings of the phase and its masks may differ.
        """
        free = ("start", "stop", *(OF_PHASE if new_phase else ()))
        as_previous = replace(self, **{name: getattr(previous, name) for name in free})
        return self.start == previous.stop and as_previous == previous

    def lr_factor(self, epoch: int, batch: int) -> float:
        """Return the factor of the learning rate at one step."""
        done = epoch + batch / self.sizes.n_batches
        return self.lr_schedule(done / self.n_epochs)


def check_factors(training: Segment, n_samples: int) -> None:
    """Raise if a schedule returns an invalid factor for a step of the training."""
    schedule = training.lr_schedule
    if schedule in LR_SCHEDULES.values():
        return
    n_steps = training.n_epochs * max(1, -(-n_samples // training.batch_size))
    steps = np.linspace(0, n_steps - 1, min(n_steps, CHECKED_STEPS)).astype(int)
    for progress in (steps / n_steps).tolist():
        try:
            factor = float(schedule(progress))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                "lr_schedule must be a function of progress in [0, 1) that returns a "
                f"number, but {schedule!r} failed at {progress:g}: "
                f"{in_a_sentence(error)}."
            ) from error
        if not math.isfinite(factor) or factor < 0:
            raise InvalidInputError(
                "lr_schedule must return a finite factor >= 0 of the learning rate, "
                f"but {schedule!r} returned {factor:g} at progress {progress:g}."
            )
