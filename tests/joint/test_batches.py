"""Batches of joint training: random items, and changes by callbacks."""

import random

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch.utils.data import Dataset

from sklearn_sharpbalance import MLP, DiversifiedEnsembleClassifier
from tests.joint.diversified_cases import Looped

DRAWS = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002
    "python": random.random,
}


class Noisy(Dataset):
    """Items with a random number, which are recorded."""

    def __init__(self, kind):
        self.draw, self.drawn = DRAWS[kind], []

    def __len__(self):
        return 12

    def __getitem__(self, i):
        self.drawn.append(self.draw())
        return torch.tensor([i % 2, self.drawn[-1], 1.0]), i % 2


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("loss", ["sed", "divdis"])
def test_random_items_differ_between_batches_and_not_between_fits(kind, loss):
    runs = []
    for _ in range(2):
        DRAWS[kind]()
        data, others = Noisy(kind), Noisy(kind)
        clf = DiversifiedEnsembleClassifier(
            MLP, 2, loss=loss, max_epochs=2, batch_size=4, random_state=0
        )
        clf.fit(data, X_unlabeled=others if loss == "divdis" else None)
        trained = data.drawn[-24:]  # two epochs, after the checks
        assert len(set(trained)) == 24
        runs.append((trained, others.drawn[-24:]))
    assert runs[0] == runs[1]


class Restarts(Callback):
    """Set weights and options at the beginning of an epoch."""

    def on_epoch_begin(self, net, **kwargs):
        with torch.no_grad():
            for weight in net.module_.parameters():
                weight.fill_(0.1)
        net.optimizer_.param_groups[0]["weight_decay"] = 5.0


def test_callbacks_may_set_weights_and_options_in_on_epoch_begin():
    X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    stacked, modules = (
        DiversifiedEnsembleClassifier(
            module, 2, max_epochs=3, callbacks=[Restarts()], lr=0.05, random_state=0
        ).fit(X, np.arange(30) % 2)
        for module in (MLP, Looped)
    )
    assert stacked.engine_.name == "stacked"
    assert modules.engine_.name == "modules"
    np.testing.assert_allclose(
        stacked.member_predict_proba(X), modules.member_predict_proba(X), atol=1e-5
    )
