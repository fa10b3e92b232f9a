"""Slices through the loss landscape, compared with losses of copied modules."""

import copy

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks import MLP
from sklearn_sharpbalance.plotting import LossLandscapeDisplay, landscape
from tests.plotting.made_up import SMALL


class NormMLP(MLP):
    def __init__(self, n_classes):
        super().__init__(64, n_classes, hidden=(8,), batch_norm=True, dropout=0.5)


@pytest.fixture(scope="module")
def normed(digits):
    options = {k: v for k, v in SMALL.items() if not k.startswith("estimator")}
    return DeepEnsembleClassifier(NormMLP, **options).fit(digits.X, digits.y)


def codes(ensemble, y):
    return torch.as_tensor(np.searchsorted(ensemble.classes_, y))


def loss_of(module, X, y):
    """Return the cross-entropy in evaluation mode, in float64 and in one batch."""
    module = copy.deepcopy(module).double().eval()
    with torch.no_grad():
        return F.cross_entropy(module(torch.as_tensor(X).double()), y).item()


def state(net):
    module = net.module_
    return {k: v.clone() for k, v in module.state_dict().items()}, module.training


def assert_same_state(net, before):
    after, training = state(net)
    assert training == before[1]
    for key, value in before[0].items():
        assert torch.equal(after[key], value), key


@pytest.mark.parametrize(
    ("n_dims", "members"),
    [(1, (0, 1)), (2, (0,)), (2, (2, 0, 1))],
)
def test_weights_do_not_change(normed, digits, members, n_dims):
    before = [state(net) for net in normed.estimators_]
    LossLandscapeDisplay.from_estimator(
        normed, digits.X, digits.y, members=members, n_dims=n_dims, n_points=3
    )
    for net, was in zip(normed.estimators_, before):
        assert_same_state(net, was)


def test_slice_equals_losses_of_changed_copies(ensemble, digits):
    rng = np.random.default_rng(3)
    net, y = ensemble.estimators_[0], codes(ensemble, digits.y)
    module = net.module_
    directions = [landscape.filter_normalized_direction(module, rng) for _ in range(2)]
    grid = rng.normal(size=(4, 2))
    losses = landscape.loss_surface(
        net, digits.X, y.numpy(), directions=directions, grid=grid
    )
    for (a, b), loss in zip(grid, losses):
        copied = copy.deepcopy(module)
        point = parameters_to_vector(module.parameters())
        vector_to_parameters(
            point + a * directions[0] + b * directions[1], copied.parameters()
        )
        assert loss == pytest.approx(loss_of(copied, digits.X, y), rel=1e-4)


def test_autocast_around_a_slice_uses_the_weights_of_every_point(ensemble, digits):
    net, y = ensemble.estimators_[0], codes(ensemble, digits.y).numpy()
    origin = landscape.weights_of(net.module_)
    grid = np.array([[-1.0], [0.0], [1.0]])
    surfaces = []
    for cached in (True, False):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            surfaces.append(
                landscape.loss_surface(net, digits.X, y, directions=[origin], grid=grid)
            )
    np.testing.assert_array_equal(*surfaces)
    assert len(np.unique(surfaces[0])) == 3


@pytest.mark.parametrize("members", [(0, 2), (1, 2, 0)])
def test_loss_at_a_members_position_is_its_own_loss(ensemble, digits, members):
    display = LossLandscapeDisplay.from_estimator(
        ensemble,
        digits.X,
        digits.y,
        members=members,
        n_dims=len(members) - 1,
        n_points=9,
        random_state=0,
    )
    y = codes(ensemble, digits.y)
    for member, (a, b) in zip(members, display.positions):
        column = np.flatnonzero(display.x == a)[0]
        at = (column,)
        if len(members) == 3:
            at = (np.flatnonzero(display.y == b)[0], column)
        expected = loss_of(ensemble.estimators_[member].module_, digits.X, y)
        assert np.asarray(display.loss)[at] == pytest.approx(expected, rel=1e-4)


def test_positions_keep_the_distances_between_members(ensemble, digits):
    display = LossLandscapeDisplay.from_estimator(
        ensemble, digits.X, digits.y, members=(0, 1, 2), n_dims=2, n_points=3
    )
    weights = [
        parameters_to_vector(net.module_.parameters()).detach().numpy()
        for net in ensemble.estimators_
    ]
    unit = np.linalg.norm(weights[1] - weights[0])
    for i in range(3):
        for j in range(i):
            shown = np.linalg.norm(display.positions[i] - display.positions[j])
            actual = np.linalg.norm(weights[i] - weights[j]) / unit
            assert shown == pytest.approx(actual, rel=1e-4)


def test_directions_are_filter_normalized():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 5))
    drawn = landscape.filter_normalized_direction(module, np.random.default_rng(0))
    weights = list(module.parameters())
    for weight, part in zip(weights, drawn.split([w.numel() for w in weights])):
        if weight.ndim == 1:
            assert not part.any()
            continue
        norms = part.view(len(weight), -1).norm(dim=1)
        torch.testing.assert_close(norms, weight.detach().flatten(1).norm(dim=1))


def test_batch_statistics_are_recomputed_between_members(normed, digits):
    display = LossLandscapeDisplay.from_estimator(
        normed, digits.X, digits.y, members=(0, 1), n_points=5
    )
    second = copy.deepcopy(normed.estimators_[1].module_)
    norm = next(m for m in second.modules() if isinstance(m, nn.BatchNorm1d))
    seen = []
    hook = norm.register_forward_pre_hook(lambda layer, inputs: seen.extend(inputs))
    with torch.no_grad():
        second.eval()(torch.as_tensor(digits.X))
    hook.remove()
    norm.running_mean.copy_(seen[0].mean(0))
    norm.running_var.copy_(seen[0].var(0))
    expected = loss_of(second, digits.X, codes(normed, digits.y))
    end = np.flatnonzero(display.x == 1.0)[0]
    assert display.loss[end] == pytest.approx(expected, rel=1e-4)


def test_slice_of_a_single_net_equals_that_of_the_member(ensemble, digits):
    net = ensemble.estimators_[0]
    y = codes(ensemble, digits.y).numpy()
    alone = LossLandscapeDisplay.from_estimator(
        net, digits.X, y, n_points=3, random_state=0
    )
    inside = LossLandscapeDisplay.from_estimator(
        ensemble, digits.X, digits.y, n_points=3, random_state=0
    )
    assert np.array_equal(alone.loss, inside.loss)


def test_surfaces_of_a_wide_range_have_logarithmic_colours():
    display = LossLandscapeDisplay([[0.1, 1.0], [2.0, 50.0]], [0, 1], [0, 1])
    contours = display.plot().contours_
    assert type(contours.norm).__name__ == "LogNorm"
    assert contours.levels[0] <= 0.1
    assert contours.levels[-1] >= 50


@pytest.mark.parametrize("off", [np.inf, np.nan])
def test_infinite_losses_of_a_surface_are_left_out(off):
    steps = np.linspace(-1, 1, 5)
    loss = 1 + np.add.outer(steps**2, steps**2)
    loss[0, 0], loss[4, 4] = 3 + off, off
    levels = LossLandscapeDisplay(loss, steps, steps).plot().contours_.levels
    assert levels[0] <= 1
    assert 2.25 <= levels[-1] < 4


def test_members_are_numbered_as_in_estimators_(ensemble, digits):
    display = LossLandscapeDisplay.from_estimator(
        ensemble, digits.X, digits.y, members=[0, 2, 1], n_dims=2, n_points=3
    )
    assert display.position_names == ["Member 0", "Member 2", "Member 1"]
    assert display.ax_.get_xlabel() == "From member 0 to member 2"
    assert display.ax_.get_ylabel() == "Towards member 1, at right angles"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_dims": 3}, "n_dims must be 1 or 2, got 3"),
        ({"members": (0, 1, 2)}, "members must hold one or 2 different indices"),
        ({"members": (0, 1), "n_dims": 2}, "must hold one or 3 different indices"),
        ({"members": 7}, "from 0 to 2 for a slice in 1 dimensions, got \\[7\\]"),
        ({"members": (1, 1)}, "different indices .* got \\[1, 1\\]"),
    ],
)
def test_invalid_slices_raise(ensemble, digits, kwargs, message):
    with pytest.raises(InvalidInputError, match=message):
        LossLandscapeDisplay.from_estimator(ensemble, digits.X, digits.y, **kwargs)


def test_invalid_arrays_raise_before_a_figure_is_made():
    with pytest.raises(InvalidInputError, match=r"shape \(2,\) to fit x and y, got"):
        LossLandscapeDisplay([1.0, 2.0, 3.0], [0, 1]).plot()
    with pytest.raises(InvalidInputError, match="no finite value"):
        LossLandscapeDisplay(np.full((2, 2), np.nan), [0, 1], [0, 1]).plot()
    assert not plt.get_fignums()
