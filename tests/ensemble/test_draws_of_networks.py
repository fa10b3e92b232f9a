"""Networks that draw in evaluation mode leave the global generator alone in a fit."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from tests.ensemble.diversified_cases import Diversified, table


class Restless(nn.Module):
    """Dropout that never rests, before statistics of batches."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.Linear(n_features, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, n_classes)

    def forward(self, x):
        return self.last(self.norm(dropout(self.first(x), 0.5, training=True)))


CASES = [
    (kind, {"aggregation": rule})
    for kind in (DeepEnsembleClassifier, Diversified)
    for rule in ("mean_logit", "uniform_soup", "greedy_soup", "temperature")
] + [
    (DeepEnsembleClassifier, {"early_stopping": 2}),
    (DeepEnsembleClassifier, {"weight_averaging": "uniform"}),
    (SharpBalanceEnsembleClassifier, {}),
    (Diversified, {"estimator": None, "shared_trunk": lambda: Restless(5, 6)}),
]


@pytest.mark.filterwarnings("ignore:.*set no temperature")
@pytest.mark.parametrize(("kind", "params"), CASES)
def test_a_fit_neither_takes_nor_leaves_draws(kind, params):
    X, y = table()
    defaults = {"estimator": Restless, "validation_fraction": 0.2, "max_epochs": 3}
    probas = []
    for seed in (1, 2):
        clf = kind(random_state=0, device="cpu", **defaults | params)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        clf.fit(X, y)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(5)  # predictions draw as well
        probas.append(clf.predict_proba(X))
    np.testing.assert_array_equal(*probas)
