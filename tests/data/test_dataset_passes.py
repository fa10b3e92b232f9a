"""Forward passes use batches of bounded memory, and read each item of a Dataset once.

A row is five floats; the tests lower the bound to sixteen rows.
"""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.data import training_data as member_data
from tests.cases import Items, rest_slow

N = 96
FEW = {
    "n_estimators": 2,
    "max_epochs": 2,
    "batch_size": 12,
    "random_state": 0,
    "device": "cpu",
    "validation_fraction": 0.5,
}
PASSES = []


ROWS = torch.tensor(np.random.default_rng(0).normal(size=(N, 5)), dtype=torch.float32)


def pairs(n=N):
    return Items(lambda i: (ROWS[i], i % 3), n)


class Noting(nn.Linear):
    """Records the batch sizes of passes without gradients."""

    def __init__(self, n_features=5, n_classes=3):
        super().__init__(n_features, n_classes)

    def forward(self, x):
        if not self.training:
            PASSES.append(len(x))
        return super().forward(x)


CASES = {
    "validation": (DeepEnsembleClassifier, {}),
    "early_stopping": (DeepEnsembleClassifier, {"early_stopping": True}),
    "temperature": (DeepEnsembleClassifier, {"aggregation": "temperature"}),
    "best_member": (DeepEnsembleClassifier, {"aggregation": "best_member"}),
    "joint": (DiversifiedEnsembleClassifier, {}),
    "trunk": (DiversifiedEnsembleClassifier, {"shared_trunk": Noting(5, 5)}),
}


SIMILAR = {"best_member", "joint"}


@pytest.mark.parametrize("case", rest_slow(CASES, CASES.keys() - SIMILAR))
@pytest.mark.filterwarnings("ignore:The 48 validation samples set no temperature")
def test_held_out_items_are_predicted_in_bounded_batches(case, monkeypatch):
    kind, params = CASES[case]
    losses, largest = [], []
    for most in (member_data.MAX_BATCH_BYTES, 16 * 5 * 4):
        monkeypatch.setattr(member_data, "MAX_BATCH_BYTES", most)
        PASSES.clear()
        clf = kind(Noting, **FEW, **params).fit(pairs())
        losses.append([row["valid_loss"] for row in clf.history_[0]])
        largest.append(max(PASSES))
    assert largest == [48, 16]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_prediction_reads_each_item_once():
    """Except for the first, which is also read for the layout."""
    clf = DeepEnsembleClassifier(**FEW).fit(pairs())
    for predict in (clf.predict_proba, clf.member_predict_proba, clf.predict):
        items = Items(lambda i: ROWS[i], 48)
        predict(items)
        assert sorted(items.read) == [0, *range(48)]


class Normed(nn.Sequential):
    """Records the batch sizes of passes that compute statistics."""

    def __init__(self, n_features=5, n_classes=3):
        super().__init__(nn.BatchNorm1d(n_features), nn.Linear(n_features, n_classes))

    def forward(self, x):
        if not self.training:
            PASSES.append(len(x))
        return super().forward(x)


@pytest.mark.parametrize("at_once", [16, 2, 1])
@pytest.mark.parametrize("as_items", [False, True])
def test_statistics_of_an_average_use_bounded_batches(at_once, as_items, monkeypatch):
    params = {**FEW, "validation_fraction": None, "standardize": False}
    clf = DeepEnsembleClassifier(Normed, **params, weight_averaging="uniform")
    X = ROWS[:49]  # an odd number: a batch of one has no variance
    given = (pairs(49),) if as_items else (X.numpy(), np.arange(49) % 3)
    monkeypatch.setattr(member_data, "MAX_BATCH_BYTES", at_once * 5 * 4)
    PASSES.clear()
    clf.fit(*given)
    assert 2 <= max(PASSES) <= max(at_once, 3)
    norm = clf.estimators_[0].module_.module[0]
    torch.testing.assert_close(norm.running_mean, X.mean(0))
    torch.testing.assert_close(norm.running_var, X.var(0))
