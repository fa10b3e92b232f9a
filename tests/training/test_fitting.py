"""Preparation of a fit: warm-up, radius, and weights of held-out samples."""

from fractions import Fraction

import numpy as np
import pytest

from sklearn_sharpbalance.data.labels import hold_out
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import SAM, SharpnessAwareOptimizer
from sklearn_sharpbalance.training.plan import default_rho, warmup_length


@pytest.mark.parametrize("n_epochs", [1, 9, 100, 200])
def test_fraction_of_warmup_epochs_is_rounded_down(n_epochs):
    for percent in range(101):
        exact = int(Fraction(percent, 100) * n_epochs)
        assert warmup_length(percent / 100, n_epochs) == exact


def test_radius_of_a_step_without_a_default_is_that_of_sam():
    assert default_rho(SharpnessAwareOptimizer) == default_rho(SAM) == 0.05


@pytest.mark.parametrize("seed", range(4))
def test_weights_of_training_samples_have_mean_one(seed):
    rng = np.random.default_rng(seed)
    weight = rng.exponential(size=40) ** 3
    weight = (weight / weight.mean()).astype(np.float32)
    data = TrainingData(rng.normal(size=(40, 3)), np.arange(40) % 2, weight)
    left = hold_out(data, 0.5, seed)
    assert left.weight.dtype == np.float32
    assert left.weight.mean(dtype=float) == pytest.approx(1, abs=1e-6)
    ratio = left.weight / weight[left.rows]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


def test_training_samples_of_weight_zero_raise():
    y = np.arange(40) % 2
    held = hold_out(TrainingData(np.zeros((40, 3)), y), 0.5, 0).valid.rows
    weight = np.isin(np.arange(40), held).astype(np.float32) * 2
    with pytest.raises(InvalidInputError, match="all have weight zero"):
        hold_out(TrainingData(np.zeros((40, 3)), y, weight), 0.5, 0)
    assert hold_out(TrainingData(np.zeros((40, 3)), y), 0.5, 0).weight is None
