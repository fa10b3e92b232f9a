"""Sharpness-aware optimizers over any torch optimizer."""

from sklearn_sharpbalance.optim.asam import ASAM
from sklearn_sharpbalance.optim.batchnorm import frozen_batch_statistics
from sklearn_sharpbalance.optim.friendly import FriendlySAM
from sklearn_sharpbalance.optim.gsam import GSAM
from sklearn_sharpbalance.optim.look_sam import LookSAM
from sklearn_sharpbalance.optim.momentum_sam import MomentumSAM
from sklearn_sharpbalance.optim.sam import SAM, SharpnessAwareOptimizer

__all__ = [
    "ASAM",
    "GSAM",
    "OPTIMIZERS",
    "SAM",
    "FriendlySAM",
    "LookSAM",
    "MomentumSAM",
    "SharpnessAwareOptimizer",
    "frozen_batch_statistics",
]

OPTIMIZERS: dict[str, type[SharpnessAwareOptimizer]] = {
    "sam": SAM,
    "asam": ASAM,
    "gsam": GSAM,
    "friendly_sam": FriendlySAM,
    "momentum_sam": MomentumSAM,
    "look_sam": LookSAM,
}
"""The optimizers by name; the common tests run over all of them."""
