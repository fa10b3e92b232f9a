"""Soups of heads with BatchNorm behind a shared trunk."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from tests.joint.diversified_cases import Noisy, diversified, table


class Counting(nn.Module):
    """Counts the samples of all forward passes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen += len(x)
        return x.flatten(1)


class Square(nn.Module):
    """Not linear, so that an augmentation does not commute with it."""

    def forward(self, x):
        return x.square()


def shifted(x):
    return 3 * x + 1 + 0.1 * torch.randn_like(x)


def soup(**params):
    defaults = {"shared_trunk": Square(), "aggregation": "uniform_soup"}
    return diversified(estimator=Noisy, standardize=False, **defaults | params)


def test_batch_norm_statistics_are_those_of_augmented_samples():
    X, y = table()
    before = torch.get_rng_state()
    clf = soup(train_transform=shifted).fit(X, y)
    assert (torch.get_rng_state() == before).all()
    (net,) = clf.predictors_
    want = np.square(3 * X + 1)  # the noise adds 0.01 to the mean
    got = net.module_.module.norm.running_mean.numpy()
    np.testing.assert_allclose(got, want.mean(0) + 0.01, rtol=0.05)
    torch.manual_seed(5)
    again = clone(clf).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("rule", ["uniform_soup", "greedy_soup"])
def test_augmentation_is_applied_before_the_trunk(rule):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = (rng.integers(0, 99, (60, 8, 8)) + 100 * y[:, None, None]).astype(np.uint8)
    clf = soup(
        shared_trunk=Counting(),
        train_transform="crop_flip",
        aggregation=rule,
        validation_fraction=0.2,
    )
    assert clf.fit(X, y).predict_proba(X).shape == (60, 2)
