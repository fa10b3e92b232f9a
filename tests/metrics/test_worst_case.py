"""Compare Auto-PGD with exact maxima and random search; test its invariances."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import nn

from sklearn_sharpbalance.metrics import adaptive_sharpness
from sklearn_sharpbalance.metrics.flatness import _objectives, worst_case
from sklearn_sharpbalance.metrics.flatness.worst_case import ascend
from tests.cases import rest_slow
from tests.metrics.nets import (
    NoisyNet,
    SquaredError,
    dense_hessian,
    ensemble_of,
    make_net,
    mean_loss,
    mlp,
    samples,
    spy_on_written_weights,
)


def quadratic_net(seed=0, bias=False):
    return make_net(nn.Linear(3, 2, bias=bias), SquaredError, seed=seed)


def quadratic_parts(net, X, y):
    """Return gradient (d,) and Hessian (d, d) of a quadratic loss."""
    loss, origin = mean_loss(net, X, y)
    gradient = torch.func.grad(loss)(origin).numpy()
    return gradient, dense_hessian(net, X, y), origin.numpy()


def maximum_in_l2_ball(g, H, rho):
    """Return the largest ``g v + v H v / 2`` for ``|v| <= rho``."""
    values, vectors = np.linalg.eigh(H)
    c = vectors.T @ g
    top = values[-1]

    def excess(shift):  # |(shift I - H)^-1 g| - rho decreases with the shift
        return np.linalg.norm(c / (shift - values)) - rho

    shift = brentq(excess, top + 1e-9, top + np.linalg.norm(g) / rho + 1)
    v = vectors @ (c / (shift - values))
    return g @ v + v @ H @ v / 2


def maximum_in_linf_ball(g, H, rho):
    """Return the maximum over all corners, where a convex function is largest."""
    corners = rho * np.array(list(itertools.product([-1, 1], repeat=len(g))))
    return max(g @ v + v @ H @ v / 2 for v in corners)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    ("norm", "exact"), [("l2", maximum_in_l2_ball), ("linf", maximum_in_linf_ball)]
)
@pytest.mark.parametrize("rho", [0.05, 0.5, 2.0])
def test_reaches_and_never_exceeds_the_maximum_of_a_quadratic(
    norm, exact, adaptive, rho
):
    X, y = samples(5, C=2)
    for seed in range(2):
        net = quadratic_net(seed)
        g, H, w = quadratic_parts(net, X, y)
        scale = np.abs(w) if adaptive else np.ones_like(w)
        g, H = g * scale, H * np.outer(scale, scale)
        largest = exact(g, H, rho)
        found = adaptive_sharpness(net, X, y, rho=rho, norm=norm, adaptive=adaptive)
        assert found <= largest * (1 + 1e-9)
        if norm == "l2":
            assert found >= largest * 0.97
        else:  # a corner may be a local maximum: compare with one step
            v = rho * np.sign(g)
            assert found >= (g @ v + v @ H @ v / 2) * (1 - 1e-9)


def test_ascent_leaves_an_exact_minimum():
    """Without a gradient the ascent starts in a random direction."""
    net = quadratic_net()
    X, y = samples(5, C=2)
    target = np.eye(2)[y]
    with torch.no_grad():
        best = np.linalg.lstsq(X, target, rcond=None)[0].T
        net.module_.weight.copy_(torch.as_tensor(best))
    _, H, _ = quadratic_parts(net, X, y)
    found = adaptive_sharpness(
        net, X, y, rho=0.5, adaptive=False, n_iter=100, random_state=0
    )
    largest = 0.5**2 * np.linalg.eigvalsh(H)[-1] / 2
    assert largest * 0.99 <= found <= largest * (1 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    norm=st.sampled_from(["l2", "linf"]),
    small=st.floats(0.01, 0.3),
)
def test_value_increases_with_the_radius_and_is_not_negative(seed, norm, small):
    net, (X, y) = mlp(seed=seed), samples(5, seed=seed)
    inner = adaptive_sharpness(net, X, y, rho=small, norm=norm)
    outer = adaptive_sharpness(net, X, y, rho=2 * small, norm=norm)
    assert 0 <= inner <= outer


def test_value_of_a_batch_is_independent_of_the_others():
    net, (X, y) = mlp(), samples(20)
    for N, n_batches, expected in [
        (3, 100, 1),
        (12, 100, 2),
        (13, None, 2),
        (13, 1, 1),
    ]:
        found = adaptive_sharpness(
            net, X[:N], y[:N], n_batches=n_batches, return_batches=True
        )
        assert found.shape == (expected,)
    values = adaptive_sharpness(
        net, X, y, batch_size=5, n_batches=None, return_batches=True
    )
    alone = [
        adaptive_sharpness(net, X[i : i + 5], y[i : i + 5]) for i in range(0, 20, 5)
    ]
    np.testing.assert_allclose(values, alone, rtol=1e-12)
    mean = adaptive_sharpness(net, X, y, batch_size=5, n_batches=None)
    assert mean == pytest.approx(np.mean(alone), rel=1e-12)


def test_pruned_weights_stay_zero(monkeypatch):
    net, (X, y) = mlp(), samples(5)
    keep = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) > 0.5
    with torch.no_grad():
        net.module_[0].weight.mul_(keep)
    written = spy_on_written_weights(monkeypatch)
    assert adaptive_sharpness(net, X, y) > 0
    moved = torch.stack(written[1:-1]) - written[-1]
    pruned = ~keep.reshape(-1)
    assert (moved[:, :15][:, pruned] == 0).all()
    assert (moved[:, :15][:, ~pruned] != 0).any(0).all()
    assert (moved[:, 15:] != 0).any()


@pytest.mark.parametrize(("norm", "order"), [("l2", 2), ("linf", np.inf)])
def test_every_point_is_in_the_ball(monkeypatch, norm, order):
    net, (X, y) = mlp(), samples(5)
    written = spy_on_written_weights(monkeypatch)
    adaptive_sharpness(net, X, y, rho=0.3, norm=norm)
    gaps = (torch.stack(written) - written[-1]) / written[-1].abs()
    lengths = torch.linalg.vector_norm(gaps, order, dim=1)
    assert lengths.max().item() == pytest.approx(0.3, rel=1e-6)
    assert len(lengths) == 1 + 20 + 1  # the start, the steps, the restored weights


def test_step_is_halved_without_progress():
    """On a narrow ridge, steps of 2 rho never reach the top."""
    calls = []

    def ridge(w):
        calls.append(w.item())
        return -((w - 0.1) ** 2).sum(), -2 * (w - 0.1)

    origin = torch.zeros(1, dtype=torch.float64)
    rise = ascend(
        ridge,
        origin,
        torch.ones_like(origin),
        rho=1.0,
        norm="l2",
        n_iter=60,
        fallback=torch.ones_like(origin),
    )
    assert rise.item() == pytest.approx(0.01, rel=1e-3)
    steps = np.abs(np.diff(calls))
    assert steps[-5:].max() < steps[:5].max() / 8


# Batches of small networks, stacked ---------------------------------------------------


class Reused(nn.Module):
    """A layer that is called twice, and layer norm."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.last = nn.Linear(3, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(torch.tanh(self.first(x)))))


class FromList(nn.Module):
    """Reads its weight from a list, where it cannot be replaced."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))
        self.weights = [self.weight]

    def forward(self, x):
        return x @ self.weights[0].T


class Branching(nn.Module):
    """Decides by a value of the batch, which vmap does not support."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        output = self.layer(x)
        return output if output.sum() > 0 else 2 * output


def count_passes(monkeypatch, net):
    calls, infer = [], net.infer

    def counted(x):
        calls.append(len(x))
        return infer(x)

    monkeypatch.setattr(net, "infer", counted)
    return calls


def one_by_one(net, X, y, **kwargs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worst_case, "stacked_objective", lambda *args: None)
        return adaptive_sharpness(net, X, y, **kwargs)


@pytest.mark.parametrize(
    ("module", "norm", "adaptive"),
    rest_slow(
        [
            (nn.Linear(3, 4), "l2", True),
            (Reused(), "linf", False),
            (nn.Linear(3, 4), "l2", False),
            (nn.Linear(3, 4), "linf", False),
            (nn.Linear(3, 4), "linf", True),
            (Reused(), "l2", False),
            (Reused(), "l2", True),
            (Reused(), "linf", True),
        ],
        keep=2,
    ),
)
def test_stacked_batches_have_the_values_of_one_by_one(norm, adaptive, module):
    members = [make_net(copy.deepcopy(module), seed=seed) for seed in range(2)]
    ensemble, (X, y) = ensemble_of(members, range(4)), samples(30)
    options = {"norm": norm, "adaptive": adaptive, "random_state": 0, "rho": 0.2}
    options |= {"per_member": True, "return_batches": True}
    values = adaptive_sharpness(ensemble, X, y, **options)
    assert values.shape == (2, 6)
    expected = one_by_one(ensemble, X, y, **options)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_several_stacks(monkeypatch):
    net, (X, y) = mlp(), samples(40)
    # 44 weights: three batches at once.
    monkeypatch.setattr(_objectives, "STACKED_WEIGHTS", 3 * 44)
    options = {"adaptive": False, "return_batches": True, "random_state": 0}
    values = adaptive_sharpness(net, X, y, **options)
    expected = one_by_one(net, X, y, **options)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_one_pass_serves_all_batches_of_a_small_network(monkeypatch):
    net, (X, y) = mlp(), samples(50)
    calls = count_passes(monkeypatch, net)
    adaptive_sharpness(net, X, y, n_iter=20)
    stacked = len(calls)
    calls.clear()
    one_by_one(net, X, y, n_iter=20)
    assert len(calls) == 1 + 10 * 21  # the check of y, and 10 batches
    assert stacked <= 1 + 2 + 21  # also a check of the module


@pytest.mark.parametrize("module", [FromList(), Branching(), NoisyNet()])
def test_other_modules_run_one_by_one(monkeypatch, module):
    net = make_net(module)
    is_picture = isinstance(module, NoisyNet)
    X, y = samples(10, shape=(2, 4, 4) if is_picture else (3,), C=3)
    expected = one_by_one(net, X, y, random_state=0, n_iter=4)
    calls = count_passes(monkeypatch, net)
    value = adaptive_sharpness(net, X, y, random_state=0, n_iter=4)
    assert value == expected > 0
    assert len(calls) >= 2 * 5


def test_threads_are_restored_and_one_for_small_networks(monkeypatch):
    net, (X, y) = mlp(), samples(10)
    seen, infer = [], net.infer

    def watched(x):
        seen.append(torch.get_num_threads())
        return infer(x)

    monkeypatch.setattr(net, "infer", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        adaptive_sharpness(net, X, y, n_iter=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen[1:]) == {1}  # the first checks y
