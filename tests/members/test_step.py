"""Compare the update on a batch with its formula in float64."""

import copy

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.members import training_step
from sklearn_sharpbalance.members.step import set_learning_rate
from sklearn_sharpbalance.optim import SAM, LookSAM, MomentumSAM

N, RHO, LR = 10, 0.3, 0.1


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    return x, torch.arange(N) % 4


@pytest.fixture
def module():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def flat_gradient(module, x, y):
    """Return the gradient of the mean loss as one vector."""
    loss = nn.functional.cross_entropy(module(x), y)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return torch.cat([g.flatten() for g in gradients])


def flat_weights(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def moved(module, epsilon):
    module = copy.deepcopy(module)
    vector = flat_weights(module) + epsilon
    nn.utils.vector_to_parameters(vector, module.parameters())
    return module


def formula(module, x, y, rho=RHO):
    """Return grad L(w + eps), eps = rho grad L(w) / |grad L(w)|."""
    g = flat_gradient(module, x, y)
    return flat_gradient(moved(module, rho * g / g.norm()), x, y)


def loss_of(module, x, y):
    """Return a function for the mean loss, and a list that counts its calls."""
    passed = []

    def loss_of_batch():
        passed.append(len(x))
        return nn.functional.cross_entropy(module(x), y)

    return loss_of_batch, passed


def test_update_equals_the_formula(module, batch):
    expected, before = formula(module, *batch), copy.deepcopy(module)
    optimizer = SAM(module.parameters(), rho=RHO, lr=LR)
    loss_of_batch, passed = loss_of(module, *batch)
    loss = training_step(optimizer, loss_of_batch, is_sam=True)
    direction = (flat_weights(before) - flat_weights(module)) / LR
    torch.testing.assert_close(direction, expected, atol=1e-12, rtol=1e-10)
    assert loss.item() == pytest.approx(loss_of(before, *batch)[0]().item())
    assert len(passed) == 2


@pytest.mark.parametrize("find_out", [True, False])
def test_clean_passes_update_batch_norm_once_and_the_perturbed_pass_never(
    batch, find_out
):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)).double()
    optimizer = SAM(module.parameters(), rho=RHO, lr=LR)
    given = True if find_out else module
    training_step(optimizer, loss_of(module, *batch)[0], is_sam=True, module=given)
    torch.testing.assert_close(module[0].running_mean, 0.1 * batch[0].mean(0))
    assert module[0].num_batches_tracked == 1


def test_momentum_sam_equals_the_formula_with_one_pass(module, batch):
    mu = 0.9
    optimizer = MomentumSAM(module.parameters(), rho=RHO, lr=LR, momentum=mu)
    v = torch.zeros_like(flat_weights(module))
    for _ in range(3):
        before = copy.deepcopy(module)
        there = moved(module, -RHO * v / v.norm()) if v.any() else before
        v = mu * v + flat_gradient(there, *batch)
        loss_of_batch, passed = loss_of(module, *batch)
        got = training_step(optimizer, loss_of_batch, is_sam=True)
        torch.testing.assert_close(
            flat_weights(module), flat_weights(before) - LR * v, atol=1e-12, rtol=1e-10
        )
        assert got.item() == pytest.approx(loss_of(there, *batch)[0]().item())
        assert len(passed) == 1


def test_look_sam_reuses_the_component_of_its_last_perturbed_pass(module, batch):
    """Also after batches without SAM, which do not count."""
    k, alpha = 3, 0.7
    optimizer = LookSAM(module.parameters(), rho=RHO, k=k, alpha=alpha, lr=LR)
    g_v = None
    for step in range(5):
        training_step(optimizer, loss_of(module, *batch)[0], is_sam=False)
        before = copy.deepcopy(module)
        g = flat_gradient(before, *batch)
        if step % k == 0:
            aware = formula(before, *batch)
            g_v = aware - (aware @ g) / (g @ g) * g
        else:
            aware = g + alpha * g.norm() / g_v.norm() * g_v
        loss_of_batch, passed = loss_of(module, *batch)
        training_step(optimizer, loss_of_batch, is_sam=True)
        direction = (flat_weights(before) - flat_weights(module)) / LR
        torch.testing.assert_close(direction, aware, atol=1e-11, rtol=1e-9)
        assert len(passed) == (2 if step % k == 0 else 1)


@pytest.mark.parametrize("sam", [SAM, MomentumSAM, LookSAM])
@pytest.mark.parametrize("is_sam", [False, True])
def test_updates_equal_those_of_the_optimizers_bitwise(module, batch, sam, is_sam):
    """Without SAM they are those of the base optimizer, else of ``step(closure)``."""
    twin = copy.deepcopy(module)
    options = {"lr": LR, "momentum": 0.9, "weight_decay": 1e-2}
    ours = sam(module.parameters(), rho=RHO, **options)
    if is_sam:
        other = sam(twin.parameters(), rho=RHO, **options)
    else:
        other = torch.optim.SGD(twin.parameters(), **options)

    def closure():
        other.zero_grad()
        loss = loss_of(twin, *batch)[0]()
        loss.backward()
        return loss

    for _ in range(7):
        training_step(ours, loss_of(module, *batch)[0], is_sam=is_sam)
        other.step(closure)
    assert flat_weights(module).equal(flat_weights(twin))


@pytest.mark.parametrize("sam", [MomentumSAM, LookSAM])
def test_methods_with_fewer_passes_update_batch_norm_once(batch, sam):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)).double()
    optimizer = sam(module.parameters(), rho=RHO, lr=LR, momentum=0.9)
    loss_of_batch, _ = loss_of(module, *batch)
    for step in range(7):
        training_step(optimizer, loss_of_batch, is_sam=True, module=module)
        assert module[0].num_batches_tracked == step + 1


def test_gradients_are_complete_when_callbacks_get_them(module, batch):
    expected, shown = formula(module, *batch), []

    def look():
        shown.append(torch.cat([p.grad.flatten() for p in module.parameters()]))

    optimizer = SAM(module.parameters(), rho=RHO, lr=LR)
    training_step(
        optimizer, loss_of(module, *batch)[0], is_sam=True, before_update=look
    )
    assert len(shown) == 1
    torch.testing.assert_close(shown[0], expected, atol=1e-12, rtol=1e-10)


def test_learning_rates_are_relative_to_the_initial_ones():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": weights[0], "lr": 0.2}, {"params": weights[1], "lr": 0.4}]
    optimizer = SAM(groups, lr=1.0)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    for factor in (0.5, 0.25):
        set_learning_rate(optimizer, factor)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == [0.2 * factor, 0.4 * factor]
