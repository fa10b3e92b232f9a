"""Batches of joint training: what their items draw, and what callbacks make of them."""

import random

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance import MLP, DiversifiedEnsembleClassifier

DRAWS = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002
    "python": random.random,
}


class Noisy(Dataset):
    """Items with a random number, all of which it remembers."""

    def __init__(self, kind):
        self.draw, self.drawn = DRAWS[kind], []

    def __len__(self):
        return 12

    def __getitem__(self, i):
        self.drawn.append(self.draw())
        return torch.tensor([i % 2, self.drawn[-1], 1.0]), i % 2


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("loss", ["sed", "divdis"])
def test_items_draw_anew_in_every_batch_and_alike_in_every_fit(kind, loss):
    runs = []
    for _ in range(2):
        DRAWS[kind]()
        data, others = Noisy(kind), Noisy(kind)
        clf = DiversifiedEnsembleClassifier(
            MLP, 2, loss=loss, max_epochs=2, batch_size=4, random_state=0
        )
        clf.fit(data, X_unlabeled=others if loss == "divdis" else None)
        trained = data.drawn[-24:]  # two epochs; what came before was looked at only
        assert len(set(trained)) == 24
        runs.append((trained, others.drawn[-24:]))
    assert runs[0] == runs[1]


class Restarts(Callback):
    """Weights and options of its own, set where an epoch begins."""

    def on_epoch_begin(self, net, **kwargs):
        with torch.no_grad():
            for weight in net.module_.parameters():
                weight.fill_(0.1)
        net.optimizer_.param_groups[0]["weight_decay"] = 5.0


class Looped(nn.Module):
    """The same as a chain that stacks, but not seen as one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, X):
        return self.inner(X) + 0.0


def test_callbacks_set_weights_and_options_where_an_epoch_begins():
    X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    stacked, modules = (
        DiversifiedEnsembleClassifier(
            module, 2, max_epochs=3, callbacks=[Restarts()], lr=0.05, random_state=0
        ).fit(X, np.arange(30) % 2)
        for module in (lambda: nn.Sequential(nn.Linear(3, 2)), Looped)
    )
    assert stacked.engine_.name == "stacked"
    assert modules.engine_.name == "modules"
    np.testing.assert_allclose(
        stacked.member_predict_proba(X), modules.member_predict_proba(X), atol=1e-5
    )
