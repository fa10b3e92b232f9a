"""Searches over the settings of ensembles, trained as one computation."""

from sklearn_sharpbalance.model_selection.preparation import PlannedFit
from sklearn_sharpbalance.model_selection.search import EnsembleSearchCV

__all__ = ["EnsembleSearchCV", "PlannedFit"]
