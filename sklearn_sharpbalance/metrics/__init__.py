"""Diversity, improvement, calibration, out-of-distribution scores and flatness.

The argument order is that of scikit-learn. ``member_probas`` always has the shape
(n_members, n_samples, n_classes).
"""

from sklearn_sharpbalance.metrics.calibration import (
    CalibrationBins,
    calibration_curve_bins,
    expected_calibration_error,
)
from sklearn_sharpbalance.metrics.divergence import (
    kl_diversity,
    pairwise_kl,
    variance_diversity,
)
from sklearn_sharpbalance.metrics.diversity import (
    disagreement,
    disagreement_error_ratio,
    pairwise_disagreement,
    unique_predictions,
)
from sklearn_sharpbalance.metrics.faults import double_fault, q_statistic
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
from sklearn_sharpbalance.metrics.improvement import (
    LossDecomposition,
    ensemble_improvement_rate,
    loss_decomposition,
)
from sklearn_sharpbalance.metrics.likelihood import (
    brier_score,
    deep_ensemble_equivalent,
    negative_log_likelihood,
)
from sklearn_sharpbalance.metrics.ood import (
    LOGIT_SCORES,
    OOD_SCORES,
    bma_score,
    energy_score,
    msp_score,
    ood_auroc,
    ood_false_positive_rate,
    predictive_diversity_score,
)
from sklearn_sharpbalance.metrics.representation import linear_cka
from sklearn_sharpbalance.metrics.scorers import SCORERS, EnsembleScorer, get_scorer
from sklearn_sharpbalance.metrics.temperature import (
    fit_temperature,
    nll_after_temperature,
)
from sklearn_sharpbalance.metrics.uncertainty import (
    area_under_risk_coverage,
    mutual_information,
    predictive_entropy,
)

__all__ = [
    "LOGIT_SCORES",
    "OOD_SCORES",
    "SCORERS",
    "CalibrationBins",
    "EnsembleScorer",
    "LossDecomposition",
    "adaptive_sharpness",
    "area_under_risk_coverage",
    "average_case_sharpness",
    "bma_score",
    "brier_score",
    "calibration_curve_bins",
    "deep_ensemble_equivalent",
    "disagreement",
    "disagreement_error_ratio",
    "double_fault",
    "energy_score",
    "ensemble_improvement_rate",
    "expected_calibration_error",
    "fisher_rao_norm",
    "fit_temperature",
    "get_scorer",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "kl_diversity",
    "linear_cka",
    "loss_decomposition",
    "mean_fisher_trace",
    "mean_input_curvature",
    "msp_score",
    "mutual_information",
    "negative_log_likelihood",
    "nll_after_temperature",
    "ood_auroc",
    "ood_false_positive_rate",
    "pairwise_disagreement",
    "pairwise_kl",
    "predictive_diversity_score",
    "predictive_entropy",
    "q_statistic",
    "relative_flatness",
    "sam_sharpness",
    "unique_predictions",
    "variance_diversity",
]
