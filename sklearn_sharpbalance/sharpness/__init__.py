"""Sharpness of single samples: scorers by name, object or function."""

from sklearn_sharpbalance._validation import Registry
from sklearn_sharpbalance.sharpness.base import FunctionScorer, SharpnessScorer
from sklearn_sharpbalance.sharpness.input_curvature import (
    InputCurvatureScorer,
    input_curvature,
)
from sklearn_sharpbalance.sharpness.scorers import (
    FisherTraceScorer,
    LastLayerGradientScorer,
    LossRiseScorer,
    LossScorer,
    fisher_trace,
    last_layer_gradient,
    loss_rise,
    per_sample_loss,
)

__all__ = [
    "SHARPNESS_SCORERS",
    "FisherTraceScorer",
    "FunctionScorer",
    "InputCurvatureScorer",
    "LastLayerGradientScorer",
    "LossRiseScorer",
    "LossScorer",
    "SharpnessScorer",
    "fisher_trace",
    "input_curvature",
    "last_layer_gradient",
    "loss_rise",
    "per_sample_loss",
]

SHARPNESS_SCORERS = Registry("sharpness", SharpnessScorer, wrap=FunctionScorer)
SHARPNESS_SCORERS["fisher_trace"] = FisherTraceScorer
SHARPNESS_SCORERS["last_layer"] = LastLayerGradientScorer
SHARPNESS_SCORERS["loss"] = LossScorer
SHARPNESS_SCORERS["loss_rise"] = LossRiseScorer
SHARPNESS_SCORERS["input_curvature"] = InputCurvatureScorer
