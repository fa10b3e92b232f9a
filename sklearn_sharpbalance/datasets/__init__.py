"""Load picture datasets as uint8 arrays; nothing is downloaded unless asked."""

from sklearn_sharpbalance.datasets._load import DATASETS, load_images

__all__ = ["DATASETS", "load_images"]
