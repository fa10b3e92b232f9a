"""Input validation, statistics, batches and augmentation of training data."""

from sklearn_sharpbalance.data.batches import (
    EpochBatches,
    PartSizes,
    epoch_batches,
    part_sizes,
)
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData

__all__ = [
    "DeviceData",
    "EpochBatches",
    "PartSizes",
    "TrainingData",
    "epoch_batches",
    "part_sizes",
]
