"""Aggregation: from the outputs of members to one prediction."""

from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS, Aggregation

__all__ = ["AGGREGATIONS", "Aggregation"]
