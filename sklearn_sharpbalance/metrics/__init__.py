"""Diversity, improvement, calibration, out-of-distribution scores and flatness.

The argument order is that of scikit-learn. ``member_probas`` always has the shape
(n_members, n_samples, n_classes).
"""

from sklearn_sharpbalance.metrics.calibration import (
    CalibrationBins,
    calibration_curve_bins,
    expected_calibration_error,
)
from sklearn_sharpbalance.metrics.diversity import (
    disagreement,
    disagreement_error_ratio,
    ensemble_improvement_rate,
    kl_diversity,
    unique_predictions,
    variance_diversity,
)
from sklearn_sharpbalance.metrics.flatness import (
    adaptive_sharpness,
    average_case_sharpness,
    fisher_rao_norm,
    hessian_top_eigenvalue,
    hessian_trace,
    mean_fisher_trace,
    mean_input_curvature,
    relative_flatness,
    sam_sharpness,
)
from sklearn_sharpbalance.metrics.likelihood import (
    fit_temperature,
    negative_log_likelihood,
    nll_after_temperature,
)
from sklearn_sharpbalance.metrics.ood import (
    OOD_SCORES,
    bma_score,
    msp_score,
    mutual_information,
    ood_auroc,
    predictive_diversity_score,
    predictive_entropy,
)
from sklearn_sharpbalance.metrics.scorers import SCORERS, EnsembleScorer, get_scorer
from sklearn_sharpbalance.metrics.uncertainty import UncertaintyParts, uncertainty_parts

__all__ = [
    "OOD_SCORES",
    "SCORERS",
    "CalibrationBins",
    "EnsembleScorer",
    "UncertaintyParts",
    "adaptive_sharpness",
    "average_case_sharpness",
    "bma_score",
    "calibration_curve_bins",
    "disagreement",
    "disagreement_error_ratio",
    "ensemble_improvement_rate",
    "expected_calibration_error",
    "fisher_rao_norm",
    "fit_temperature",
    "get_scorer",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "kl_diversity",
    "mean_fisher_trace",
    "mean_input_curvature",
    "msp_score",
    "mutual_information",
    "negative_log_likelihood",
    "nll_after_temperature",
    "ood_auroc",
    "predictive_diversity_score",
    "predictive_entropy",
    "relative_flatness",
    "sam_sharpness",
    "uncertainty_parts",
    "unique_predictions",
    "variance_diversity",
]
