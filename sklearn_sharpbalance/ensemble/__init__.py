"""Ensembles as scikit-learn estimators."""

from sklearn_sharpbalance.ensemble.aggregation import AGGREGATIONS, Aggregation
from sklearn_sharpbalance.ensemble.deep import DeepEnsembleClassifier
from sklearn_sharpbalance.ensemble.diversified import DiversifiedEnsembleClassifier
from sklearn_sharpbalance.ensemble.sharpbalance import SharpBalanceEnsembleClassifier

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "DeepEnsembleClassifier",
    "DiversifiedEnsembleClassifier",
    "SharpBalanceEnsembleClassifier",
]
