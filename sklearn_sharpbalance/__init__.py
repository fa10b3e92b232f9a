"""Flat and diverse deep ensembles as scikit-learn estimators."""

from sklearn_sharpbalance._version import __version__ as __version__
from sklearn_sharpbalance.ensemble import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.ensemble.base import load
from sklearn_sharpbalance.networks import (
    MLP,
    ResNet18,
    SmallCNN,
    WideResNet,
)

__all__ = [
    "MLP",
    "DeepEnsembleClassifier",
    "DiversifiedEnsembleClassifier",
    "ResNet18",
    "SharpBalanceEnsembleClassifier",
    "SmallCNN",
    "WideResNet",
    "load",
]
