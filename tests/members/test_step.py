"""Compare the mixed update with its formula in float64."""

import copy

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.members import balanced_step
from sklearn_sharpbalance.members.step import set_learning_rate
from sklearn_sharpbalance.optim import SAM, LookSAM, MomentumSAM

N, N_SAM, RHO, LR = 10, 4, 0.3, 0.1


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


def formula(module, x, y, n_sam, rho):
    """Return (1 - s) grad L_R(w) + s grad L_S(w + eps), as in the paper."""
    share = n_sam / len(y)
    direction = torch.zeros_like(flat_weights(module))
    if n_sam < len(y):
        direction += (1 - share) * flat_gradient(module, x[n_sam:], y[n_sam:])
    if n_sam:
        g = flat_gradient(module, x[:n_sam], y[:n_sam])
        there = moved(module, rho * g / g.norm())
        direction += share * flat_gradient(there, x[:n_sam], y[:n_sam])
    return direction


def losses_of(module, x, y):
    """Return the loss of a slice as engines compute it, with weights 1/B."""

    def loss_of(part):
        return (
            nn.functional.cross_entropy(module(x[part]), y[part], reduction="sum") / N
        )

    return loss_of


@pytest.mark.parametrize("n_sam", [0, 1, N_SAM, N])
def test_update_equals_the_formula(module, batch, n_sam):
    expected = formula(module, *batch, n_sam, RHO)
    before = flat_weights(module)
    optimizer = SAM(module.parameters(), rho=RHO, lr=LR)
    loss = balanced_step(optimizer, losses_of(module, *batch), n_sam, N)
    torch.testing.assert_close(
        (before - flat_weights(module)) / LR, expected, atol=1e-12, rtol=1e-10
    )
    before_step = moved(module, before - flat_weights(module))
    torch.testing.assert_close(
        loss, nn.functional.cross_entropy(before_step(batch[0]), batch[1]).detach()
    )


def test_rho_zero_treats_all_samples_equally(module, batch):
    twin = copy.deepcopy(module)
    for model, n_sam in ((module, N_SAM), (twin, 0)):
        optimizer = SAM(model.parameters(), rho=0.0, lr=LR)
        balanced_step(optimizer, losses_of(model, *batch), n_sam, N)
    torch.testing.assert_close(flat_weights(module), flat_weights(twin))


@pytest.mark.parametrize("find_out", [True, False])
def test_clean_passes_update_batch_norm_once_and_the_perturbed_pass_never(
    batch, find_out
):
    x, y = batch
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)).double()
    optimizer = SAM(module.parameters(), rho=RHO, lr=LR)
    given = True if find_out else module
    balanced_step(optimizer, losses_of(module, x, y), N_SAM, N, module=given)
    parts = [x[:N_SAM].mean(0), x[N_SAM:].mean(0)]
    # Momentum 0.1; the order of the parts is not specified.
    expected = [0.09 * first + 0.1 * last for first, last in (parts, parts[::-1])]
    got = module[0].running_mean
    assert any(torch.allclose(got, mean, atol=1e-12) for mean in expected)
    assert module[0].num_batches_tracked == 2


def counted(loss_of):
    """Return the losses, and counts of the samples of each slice."""
    passed = []

    def counting(part):
        passed.append((part.start, part.stop))
        return loss_of(part)

    return counting, passed


@pytest.mark.parametrize("n_sam", [0, 1, N_SAM, N])
def test_momentum_sam_equals_the_formula_with_one_pass_per_part(module, batch, n_sam):
    x, y = batch
    share, mu = n_sam / N, 0.9
    optimizer = MomentumSAM(module.parameters(), rho=RHO, lr=LR, momentum=mu)
    v = torch.zeros_like(flat_weights(module))
    for _ in range(3):
        before = copy.deepcopy(module)
        there = moved(module, -RHO * v / v.norm()) if v.any() else before
        direction = torch.zeros_like(v)
        loss = 0.0
        if n_sam < N:
            direction += (1 - share) * flat_gradient(before, x[n_sam:], y[n_sam:])
            loss += losses_of(before, x, y)(slice(n_sam, N)).item()
        if n_sam:
            direction += share * flat_gradient(there, x[:n_sam], y[:n_sam])
            loss += losses_of(there, x, y)(slice(0, n_sam)).item()
        v = mu * v + direction
        loss_of, passed = counted(losses_of(module, x, y))
        got = balanced_step(optimizer, loss_of, n_sam, N)
        torch.testing.assert_close(
            flat_weights(module), flat_weights(before) - LR * v, atol=1e-12, rtol=1e-10
        )
        assert got.item() == pytest.approx(loss)
        parts = [(0, n_sam)] * (n_sam > 0) + [(n_sam, N)] * (n_sam < N)
        assert sorted(passed) == parts


def test_look_sam_reuses_the_component_of_the_sam_part(module, batch):
    x, y = batch
    share, k, alpha = N_SAM / N, 3, 0.7
    optimizer = LookSAM(module.parameters(), rho=RHO, k=k, alpha=alpha, lr=LR)
    g_v = None
    for step in range(5):
        before = copy.deepcopy(module)
        g = flat_gradient(before, x[:N_SAM], y[:N_SAM])
        if step % k == 0:
            there = moved(before, RHO * g / g.norm())
            aware = flat_gradient(there, x[:N_SAM], y[:N_SAM])
            g_v = aware - (aware @ g) / (g @ g) * g
        else:
            aware = g + alpha * g.norm() / g_v.norm() * g_v
        normal = flat_gradient(before, x[N_SAM:], y[N_SAM:])
        direction = (1 - share) * normal + share * aware
        loss_of, passed = counted(losses_of(module, x, y))
        loss = balanced_step(optimizer, loss_of, N_SAM, N)
        torch.testing.assert_close(
            (flat_weights(before) - flat_weights(module)) / LR,
            direction,
            atol=1e-11,
            rtol=1e-9,
        )
        assert len(passed) == (3 if step % k == 0 else 2)
        torch.testing.assert_close(
            loss, nn.functional.cross_entropy(before(x), y).detach()
        )


@pytest.mark.parametrize("sam", [SAM, MomentumSAM, LookSAM])
@pytest.mark.parametrize("n_sam", [0, N])
def test_update_without_or_with_only_sam_samples_bitwise(module, batch, sam, n_sam):
    """Without SAM samples it is the base optimizer, with all ``step(closure)``."""
    twin = copy.deepcopy(module)
    options = {"lr": LR, "momentum": 0.9, "weight_decay": 1e-2}
    ours = sam(module.parameters(), rho=RHO, **options)
    if n_sam:
        other = sam(twin.parameters(), rho=RHO, **options)
    else:
        other = torch.optim.SGD(twin.parameters(), **options)

    def closure():
        other.zero_grad()
        loss = losses_of(twin, *batch)(slice(0, N))
        loss.backward()
        return loss

    for _ in range(7):
        balanced_step(ours, losses_of(module, *batch), n_sam, N)
        other.step(closure)
    assert flat_weights(module).equal(flat_weights(twin))


@pytest.mark.parametrize("sam", [MomentumSAM, LookSAM])
def test_methods_with_fewer_passes_update_batch_norm_once_per_part(batch, sam):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)).double()
    optimizer = sam(module.parameters(), rho=RHO, lr=LR, momentum=0.9)
    for step in range(7):
        balanced_step(optimizer, losses_of(module, *batch), N_SAM, N, module=module)
        assert module[0].num_batches_tracked == 2 * (step + 1)


def test_gradients_are_complete_when_callbacks_get_them(module, batch):
    expected = formula(module, *batch, N_SAM, RHO)
    shown = []

    def look():
        shown.append(torch.cat([p.grad.flatten() for p in module.parameters()]))

    optimizer = SAM(module.parameters(), rho=RHO, lr=LR)
    balanced_step(optimizer, losses_of(module, *batch), N_SAM, N, before_update=look)
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
