"""Ensembles as scikit-learn estimators."""

from sklearn_sharpbalance.ensemble.deep import DeepEnsembleClassifier
from sklearn_sharpbalance.ensemble.diversified import DiversifiedEnsembleClassifier
from sklearn_sharpbalance.ensemble.sharpbalance import SharpBalanceEnsembleClassifier

__all__ = [
    "DeepEnsembleClassifier",
    "DiversifiedEnsembleClassifier",
    "SharpBalanceEnsembleClassifier",
]
