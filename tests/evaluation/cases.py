"""Small ensembles that several test files use."""

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.networks import MLP

SMALL = {"estimator": MLP, "estimator__module__hidden": (8,), "batch_size": 64}


def sharpbalance(**kwargs):
    """Return a small SharpBalance ensemble."""
    return SharpBalanceEnsembleClassifier(**(SMALL | kwargs))
