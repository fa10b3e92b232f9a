"""Input validation, statistics, batches and augmentation of training data."""

from sklearn_sharpbalance.data.batches import BatchLayout, BatchSizes, batch_sizes
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData

__all__ = ["BatchLayout", "BatchSizes", "DeviceData", "TrainingData", "batch_sizes"]
