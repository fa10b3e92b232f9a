"""Every public estimator passes scikit-learn's checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)

FAST = {"n_estimators": 2, "max_epochs": 3, "batch_size": 64, "random_state": 0}
ESTIMATORS = [
    SharpBalanceEnsembleClassifier(**FAST),
    # The other losses need samples without labels, which these checks do not pass.
    DiversifiedEnsembleClassifier(**FAST),
]
# They have the methods of SharpBalanceEnsembleClassifier.
DEEP = DeepEnsembleClassifier(**FAST)
SAM = SharpBalanceEnsembleClassifier(selection="all", **FAST)

# A sample of weight two and the same sample twice have the same loss over an epoch, but
# give different mini-batches and selections. Only full-batch training can be equal.
IMPOSSIBLE = {"check_sample_weight_equivalence_on_dense_data": "mini-batches differ"}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda _: IMPOSSIBLE)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([DEEP, SAM], expected_failed_checks=lambda _: IMPOSSIBLE)
def test_scikit_learn_checks_of_variants(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "estimator", [*ESTIMATORS, DEEP, SAM], ids=lambda e: type(e).__name__
)
def test_weights_equal_repetitions_in_full_batches(estimator):
    """The check that is expected to fail holds in full-batch training."""
    import numpy as np
    from sklearn.base import clone
    from sklearn.datasets import make_blobs
    from torch.optim import SGD

    X, y = make_blobs(60, centers=3, random_state=0)
    weight = np.where(np.arange(60) % 3 == 0, 2, 1)
    estimator = clone(estimator).set_params(
        optimizer=SGD, batch_size=1000, standardize=False, lr=0.01, max_epochs=10
    )
    if hasattr(estimator, "selection"):
        estimator.set_params(selection="all")
    weighted = clone(estimator).fit(X, y, sample_weight=weight)
    repeated = clone(estimator).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(
        weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-4
    )
