"""Compare average-case and SAM sharpness with exact expectations and loops."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance.metrics import average_case_sharpness, sam_sharpness
from tests.metrics.nets import (
    SquaredError,
    dense_hessian,
    make_net,
    mean_loss,
    mlp,
    samples,
    spy_on_written_weights,
)


@pytest.fixture
def quadratic():
    """Return net and samples at an exact minimum, so that there is no linear term."""
    net = make_net(nn.Linear(3, 2), SquaredError)
    X, y = samples(20, C=2)
    with torch.no_grad():
        design = np.c_[X, np.ones(20)]
        best = np.linalg.lstsq(design, np.eye(2)[y], rcond=None)[0].T
        net.module_.weight.copy_(torch.as_tensor(best[:, :3]))
        net.module_.bias.copy_(torch.as_tensor(best[:, 3]))
    return net, X, y


@pytest.mark.parametrize("adaptive", [True, False])
def test_average_case_of_a_quadratic(quadratic, adaptive):
    net, X, y = quadratic
    _, w = mean_loss(*quadratic)
    H = dense_hessian(*quadratic)
    scale = w.numpy() ** 2 if adaptive else np.ones(8)
    expected = 0.3**2 / 2 * (scale * np.diag(H)).sum()
    # Var[e^T H e / 2] = tr((S H)^2) / 2 with covariance S.
    S = 0.3**2 * np.diag(scale)
    error = np.sqrt(np.trace(S @ H @ S @ H) / 2 / 600)
    found = average_case_sharpness(
        net, X, y, rho=0.3, adaptive=adaptive, n_draws=600, random_state=0
    )
    assert found == pytest.approx(expected, abs=4 * error)
    assert 4 * error < expected / 2


def test_sam_sharpness_of_a_quadratic(quadratic):
    net, X, y = quadratic
    H = dense_hessian(*quadratic)
    expected = 0.2**2 / 2 * np.trace(H) / 8
    found = sam_sharpness(net, X, y, rho=0.2, n_draws=800, random_state=0)
    spread = 0.2**2 / 2 * np.std(np.linalg.eigvalsh(H)) / np.sqrt(8)
    assert found == pytest.approx(expected, abs=4 * spread / np.sqrt(800))


def recorded(monkeypatch, metric, net, X, y, **options):
    """Return the value, the rises (K,) and perturbations (K, d) behind it, and w."""
    written = spy_on_written_weights(monkeypatch)
    value = metric(net, X, y, **options)
    loss, w = mean_loss(net, X, y)
    torch.testing.assert_close(written.pop(), w, rtol=0, atol=0)
    rises = [(loss(v) - loss(w)).item() for v in written]
    return value, rises, torch.stack(written) - w, w


def test_sam_sharpness_is_the_mean_rise_at_a_fixed_distance(monkeypatch):
    options = {"rho": 0.1, "n_draws": 7}
    value, rises, eps, _ = recorded(
        monkeypatch, sam_sharpness, mlp(), *samples(30), **options
    )
    assert len(rises) == 7
    assert value == pytest.approx(np.mean(rises), rel=1e-9)
    np.testing.assert_allclose(eps.norm(dim=1), 0.1, rtol=1e-9)


def test_gaussian_noise_has_the_size_of_each_weight(monkeypatch):
    net, options = mlp((3, 30, 4)), {"rho": 0.2, "n_draws": 50}
    value, rises, eps, w = recorded(
        monkeypatch, average_case_sharpness, net, *samples(10), **options
    )
    assert value == pytest.approx(np.mean(rises), rel=1e-9)
    relative = (eps / w.abs()).numpy()
    assert relative.std() == pytest.approx(0.2, rel=0.05)
    assert abs(relative.mean()) < 0.01
    assert len(rises) == 50


def test_pruned_weights_stay_zero(monkeypatch):
    net = mlp()
    with torch.no_grad():
        net.module_[0].weight[:, 0] = 0
    options = {"n_draws": 3}
    _, _, eps, _ = recorded(
        monkeypatch, average_case_sharpness, net, *samples(10), **options
    )
    first = eps[:, :15].reshape(3, 5, 3)
    assert (first[:, :, 0] == 0).all()
    assert (first[:, :, 1:] != 0).all()
