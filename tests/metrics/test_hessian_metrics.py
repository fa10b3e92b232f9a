"""Compare trace and largest eigenvalue with the dense Hessian."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import ArpackNoConvergence
from torch import nn

from sklearn_sharpbalance.exceptions import SharpBalanceError
from sklearn_sharpbalance.metrics import hessian_top_eigenvalue, hessian_trace
from sklearn_sharpbalance.metrics.flatness import hessian
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
)


def test_trace_is_within_its_standard_error():
    net, (X, y) = mlp(), samples(20)
    H = dense_hessian(net, X, y)
    trace, error = hessian_trace(
        net, X, y, n_probes=150, random_state=0, return_std_error=True
    )
    assert trace == pytest.approx(np.trace(H), abs=4 * error)
    # Hutchinson with signs: variance 2 (|H|_F^2 - |diag H|^2) a probe.
    variance = 2 * (np.square(H).sum() - np.square(np.diag(H)).sum())
    assert error == pytest.approx(np.sqrt(variance / 150), rel=0.25)


def test_trace_of_a_diagonal_hessian_is_exact():
    """Random signs have no error if there are no off-diagonal entries."""
    net = make_net(nn.Linear(3, 2, bias=False), SquaredError)
    X, y = np.eye(3), np.array([0, 1, 0])
    trace, error = hessian_trace(net, X, y, n_probes=2, return_std_error=True)
    assert trace == pytest.approx(2.0, rel=1e-12)
    assert error == pytest.approx(0, abs=1e-12)


def test_standard_error_of_one_probe_is_infinite():
    net, (X, y) = mlp(), samples(10)
    _, error = hessian_trace(net, X, y, n_probes=1, return_std_error=True)
    assert error == np.inf


def test_standard_error_of_an_ensemble_considers_shared_probes():
    X, y = samples(20)
    net = mlp()
    twins = ensemble_of([net, net], range(4))
    kwargs = {"n_probes": 30, "random_state": 0, "return_std_error": True}
    value, error = hessian_trace(net, X, y, **kwargs)
    assert hessian_trace(twins, X, y, **kwargs) == pytest.approx((value, error))
    values, errors = hessian_trace(twins, X, y, per_member=True, **kwargs)
    np.testing.assert_allclose(values, [value] * 2)
    np.testing.assert_allclose(errors, [error] * 2)


@pytest.mark.parametrize("make", [mlp, lambda: make_net(NoisyNet())])
def test_largest_eigenvalue_equals_the_dense_one(make, monkeypatch):
    monkeypatch.setattr(hessian, "CHUNK_SIZE", 4)
    net = make()
    X, y = samples(10, (2, 4, 4), 3) if make is not mlp else samples(10)
    net.module_.eval()
    expected = np.linalg.eigvalsh(dense_hessian(net, X, y))[-1]
    found = hessian_top_eigenvalue(net, X, y, tol=1e-10, random_state=0)
    assert found == pytest.approx(expected, rel=1e-8)
    rough = hessian_top_eigenvalue(net, X, y, random_state=1)
    assert rough == pytest.approx(expected, rel=1e-3)


def test_largest_means_in_value_not_in_magnitude():
    class Downhill(SquaredError):
        def forward(self, output, y):
            return -super().forward(output, y)

    net = make_net(nn.Linear(2, 2, bias=False), Downhill)
    X, y = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([0, 1])
    found = hessian_top_eigenvalue(net, X, y, tol=0, random_state=0)
    assert found == pytest.approx(-0.5, rel=1e-9)


def difference_quotient_hessian(net, X, y, step=1e-6):
    """Return the Hessian (d, d) from finite differences of gradients."""
    loss, w = mean_loss(net, X, y)
    gradient = torch.func.grad(loss)
    moves = step * torch.eye(len(w), dtype=w.dtype)
    rows = [(gradient(w + v) - gradient(w - v)) / (2 * step) for v in moves]
    return torch.stack(rows).detach().numpy()


PARAMETRIZED, BY_HOOK = nn.utils.parametrizations.weight_norm, nn.utils.weight_norm


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    ("weight_norm", "dim"),
    rest_slow(
        [
            (PARAMETRIZED, 0),
            (BY_HOOK, 1),
            (PARAMETRIZED, None),
            (PARAMETRIZED, 1),
            (BY_HOOK, 0),
            (BY_HOOK, None),
        ],
        keep=2,
    ),
)
def test_curvature_of_weight_norm_equals_finite_differences(weight_norm, dim):
    """The second derivative of torch's own weight norm is wrong."""
    first = weight_norm(nn.Linear(3, 4), dim=dim)
    net, (X, y) = make_net(nn.Sequential(first, nn.Tanh(), nn.Linear(4, 4))), samples(9)
    H = difference_quotient_hessian(net, X, y)
    found = hessian_top_eigenvalue(net, X, y, tol=1e-10, random_state=0)
    assert found == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-6)
    trace, error = hessian_trace(
        net, X, y, n_probes=100, random_state=0, return_std_error=True
    )
    assert trace == pytest.approx(np.trace(H), abs=4 * error)


def test_a_loss_without_curvature_has_the_eigenvalue_zero():
    net = make_net(nn.Linear(3, 2))
    with torch.no_grad():
        net.module_.weight.zero_()
        net.module_.bias.copy_(torch.tensor([1e4, 0.0]))  # certain, and right
    X, _ = samples(12)
    for metric in (hessian_top_eigenvalue, hessian_trace):
        assert metric(net, X, np.zeros(12, int), random_state=0) == 0


def test_lanczos_without_convergence_raises(monkeypatch):
    def gives_up(*args, **kwargs):
        raise ArpackNoConvergence("No convergence", np.array([]), np.zeros((0, 0)))

    monkeypatch.setattr(hessian, "eigsh", gives_up)
    message = r"Lanczos did not converge to tol=0.001. Raise tol"
    with pytest.raises(SharpBalanceError, match=message):
        hessian_top_eigenvalue(mlp(), *samples(12))
