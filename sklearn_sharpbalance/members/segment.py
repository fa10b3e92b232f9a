"""A segment: epochs that members train through without interruption."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sklearn_sharpbalance.data.batches import PartSizes, part_sizes
from sklearn_sharpbalance.members.weights import WeightAveraging

__all__ = ["Segment"]

NO_SIZES = PartSizes(n_batches=0, sam=0, normal=0)  # before masks are known
OF_PHASE = ("name", "rho", "averaging", "sizes")  # may change from phase to phase


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
        Share of the weights that is set to zero before the first epoch.
    pruned : bool
        Whether weights that are zero at the start stay zero.
    sizes : PartSizes
        Shape of the batches, set by :meth:`with_masks`.
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
    sizes: PartSizes = NO_SIZES

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
            sizes=part_sizes(masks, self.batch_size),
        )

    def continues(self, previous: "Segment", *, new_phase: bool = False) -> bool:
        """Whether this segment follows another one with the same settings.

        Parameters
        ----------
        previous : Segment
        new_phase : bool, default=False
            Whether settings of the phase and its masks may differ.
        """
        free = ("start", "stop", *(OF_PHASE if new_phase else ()))
        as_previous = replace(self, **{name: getattr(previous, name) for name in free})
        return self.start == previous.stop and as_previous == previous

    def lr_factor(self, epoch: int, batch: int) -> float:
        """Return the factor of the learning rate at one step."""
        done = epoch + batch / self.sizes.n_batches
        return self.lr_schedule(done / self.n_epochs)
