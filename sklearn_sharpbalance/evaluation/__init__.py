"""Reports about fitted ensembles, and fair comparisons between methods."""

from sklearn_sharpbalance.evaluation._measures import METRICS
from sklearn_sharpbalance.evaluation.compare import compare
from sklearn_sharpbalance.evaluation.compute import gradient_passes, match_passes
from sklearn_sharpbalance.evaluation.evaluate import evaluate
from sklearn_sharpbalance.evaluation.report import EvaluationReport
from sklearn_sharpbalance.evaluation.robustness import corruption_accuracy
from sklearn_sharpbalance.evaluation.tradeoff import tradeoff_curve

__all__ = [
    "METRICS",
    "EvaluationReport",
    "compare",
    "corruption_accuracy",
    "evaluate",
    "gradient_passes",
    "match_passes",
    "tradeoff_curve",
]
