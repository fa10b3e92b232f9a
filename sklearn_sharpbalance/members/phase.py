"""A phase: a stretch of epochs with one rule for which samples get SAM."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn_sharpbalance.data.batches import PartSizes
from sklearn_sharpbalance.members.averaging import WeightAveraging

__all__ = ["Phase"]


@dataclass(frozen=True)
class Phase:
    """Everything a member needs to know to train from one epoch to another.

    It holds what matters to these epochs and nothing else: two fits whose phases
    are equal train the same members, which is what caching relies on.

    Attributes
    ----------
    name : str
        "warmup" or "balanced".
    start, stop : int
        First epoch and the one after the last.
    n_epochs : int
        Length of the whole training, which the learning rate is a function of.
    sizes : PartSizes
        Shape of the batches.
    rho : tuple of float
        Radius of the perturbation for each member; zeros where no sample gets SAM.
    lr_schedule : callable
        Progress in [0, 1) to a factor of the learning rate.
    transform : callable or None
        Augmentation of a batch on the device.
    precision : str
        "float32", "tf32", "bf16" or "fp16".
    compile : bool or None
        Whether modules run through torch.compile; None leaves it to the engine.
    pruned : bool
        Whether weights that are zero at the start stay zero.
    averaging : WeightAveraging or None
    """

    name: str
    start: int
    stop: int
    n_epochs: int
    sizes: PartSizes
    rho: tuple[float, ...]
    lr_schedule: Callable[[float], float]
    transform: Callable[[Any], Any] | None = None
    precision: str = "float32"
    compile: bool | None = None
    pruned: bool = False
    averaging: WeightAveraging | None = None

    @property
    def last(self) -> bool:
        """Whether training ends with this phase."""
        return self.stop >= self.n_epochs

    def lr_factor(self, epoch: int, batch: int) -> float:
        """Factor of the learning rate at one step."""
        done = epoch + batch / self.sizes.n_batches
        return self.lr_schedule(done / self.n_epochs)
