"""Sharpness-aware optimizers over any torch optimizer."""

from sklearn_sharpbalance.optim.asam import ASAM
from sklearn_sharpbalance.optim.base import SharpnessAwareOptimizer
from sklearn_sharpbalance.optim.batchnorm import frozen_batch_statistics
from sklearn_sharpbalance.optim.friendly import FriendlySAM
from sklearn_sharpbalance.optim.gsam import GSAM
from sklearn_sharpbalance.optim.sam import SAM

__all__ = [
    "ASAM",
    "GSAM",
    "OPTIMIZERS",
    "SAM",
    "FriendlySAM",
    "SharpnessAwareOptimizer",
    "frozen_batch_statistics",
]

OPTIMIZERS: dict[str, type[SharpnessAwareOptimizer]] = {
    "sam": SAM,
    "asam": ASAM,
    "gsam": GSAM,
    "friendly_sam": FriendlySAM,
}
"""The optimizers by name; the common tests run over all of them."""
