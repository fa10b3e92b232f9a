"""Items of a Dataset pass networks in bounded memory, and none is read for its size.

Rows of five floats: sixteen of them fill what may pass at once.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
)
from sklearn_sharpbalance.members import data as member_data

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


class Pairs(Dataset):
    """Knows which items were read."""

    def __init__(self, n=N, labelled=True):
        rng = np.random.default_rng(0)
        self.X = torch.tensor(rng.normal(size=(n, 5)), dtype=torch.float32)
        self.labelled, self.read = labelled, []

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        self.read.append(row)
        return (self.X[row], row % 3) if self.labelled else self.X[row]


class Noting(nn.Linear):
    """Notes how many rows pass at once where nothing is trained."""

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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:The 48 held-out samples set no temperature")
def test_a_fit_passes_held_out_items_in_bounded_memory(case, monkeypatch):
    kind, params = CASES[case]
    losses, largest = [], []
    for most in (member_data.PASS_BYTES, 16 * 5 * 4):
        monkeypatch.setattr(member_data, "PASS_BYTES", most)
        PASSES.clear()
        clf = kind(Noting, **FEW, **params).fit(Pairs())
        losses.append([row["valid_loss"] for row in clf.history_[0]])
        largest.append(max(PASSES))
    assert largest == [48, 16]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_prediction_reads_no_item_for_its_size():
    """The first is read twice: how it is laid out is looked at before the work."""
    clf = DeepEnsembleClassifier(**FEW).fit(Pairs())
    for predict in (clf.predict_proba, clf.member_predict_proba, clf.predict):
        items = Pairs(48, labelled=False)
        predict(items)
        assert sorted(items.read) == [0, *range(48)]
