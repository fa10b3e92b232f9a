"""The output of a module in training mode is checked before training."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import rest_slow

FEW = {"n_estimators": 2, "max_epochs": 2, "batch_size": 16, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(33, 4)).astype(np.float32)
Y = np.arange(33) % 3
PASSES = []


class Auxiliary(nn.Module):
    """Two outputs in training mode, like torchvision's googlenet."""

    def __init__(self, n_features, n_classes, kind=tuple):
        super().__init__()
        self.main = nn.Linear(n_features, n_classes)
        self.aux = nn.Linear(n_features, n_classes)
        self.kind = kind

    def forward(self, x):
        if not self.training:
            return self.main(x)
        PASSES.append(len(x))
        pairs = {"logits": self.main(x), "aux": self.aux(x)}
        return pairs if self.kind is dict else self.kind(pairs.values())


class RandomInTraining(nn.Module):
    """Draw random numbers and change buffers in training mode."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.Linear(n_features, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(6, n_classes)
        self.register_buffer("n_passes", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.n_passes = self.n_passes + 1
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class GhostBatchNorm(RandomInTraining):
    """Batch statistics of each half, which need more than two samples."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        return torch.cat(
            [super(GhostBatchNorm, self).forward(half) for half in x.chunk(2)]
        )


KINDS = [
    SharpBalanceEnsembleClassifier,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
]


@pytest.mark.parametrize("ensemble", KINDS)
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_several_outputs_in_training_mode_raise(ensemble, kind, tmp_path):
    PASSES.clear()
    clf = ensemble(
        Auxiliary, estimator__module__kind=kind, checkpoint_dir=tmp_path / "run", **FEW
    )
    message = (
        rf"In training mode the module Auxiliary returned a {kind.__name__}; it must "
        r"return one tensor of logits of shape \(n_samples, 3\).*aux_logits=False"
    )
    before = torch.get_rng_state()
    with pytest.raises(InvalidInputError, match=message):
        clf.fit(X, Y)
    assert PASSES == [2]  # the check
    assert not (tmp_path / "run").exists()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("ensemble", "module"),
    rest_slow(
        product(KINDS, [RandomInTraining, GhostBatchNorm]),
        [(KINDS[0], RandomInTraining), (KINDS[2], GhostBatchNorm)],
    ),
)
def test_the_check_has_no_side_effects(ensemble, module, monkeypatch):
    """Neither on buffers nor on random numbers."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    checked = ensemble(module, **FEW).fit(X, Y)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    monkeypatch.setattr(
        "sklearn_sharpbalance.members.inference._check_training", lambda *args: None
    )
    unchecked = ensemble(module, **FEW).fit(X, Y)
    for one, other in zip(checked.estimators_, unchecked.estimators_):
        for name, value in one.module_.state_dict().items():
            assert torch.equal(value, other.module_.state_dict()[name]), name
        assert one.module_.module.n_passes == other.module_.module.n_passes
