"""Members: a skorch net that trains on a SAM mask, its state, its batches."""

from sklearn_sharpbalance.members.batches import (
    EpochBatches,
    PartSizes,
    epoch_batches,
    part_sizes,
)
from sklearn_sharpbalance.members.data import DeviceData, TrainingData
from sklearn_sharpbalance.members.module import MemberModule
from sklearn_sharpbalance.members.net import as_skorch_net, member_net
from sklearn_sharpbalance.members.phase import Phase
from sklearn_sharpbalance.members.scoring import score_member
from sklearn_sharpbalance.members.state import MemberState, initial_state, restore
from sklearn_sharpbalance.members.step import balanced_step
from sklearn_sharpbalance.members.train import train_member

__all__ = [
    "DeviceData",
    "EpochBatches",
    "MemberModule",
    "MemberState",
    "PartSizes",
    "Phase",
    "TrainingData",
    "as_skorch_net",
    "balanced_step",
    "epoch_batches",
    "initial_state",
    "member_net",
    "part_sizes",
    "restore",
    "score_member",
    "train_member",
]
