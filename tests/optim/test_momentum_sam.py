"""Momentum-SAM: one pass per step, at weights that moved along the momentum."""

from functools import partial

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import MomentumSAM
from tests.optim.reference import closure_of, loss_of, new, problem, same, train


def parameter():
    return nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("base", "options", "name"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, "momentum_buffer"),
        (torch.optim.RMSprop, {"momentum": 0.5}, "momentum_buffer"),
        (torch.optim.Adam, {}, "exp_avg"),
        (torch.optim.AdamW, {}, "exp_avg"),
        (torch.optim.NAdam, {}, "exp_avg"),
        (torch.optim.RAdam, {}, "exp_avg"),
        (torch.optim.Adamax, {}, "exp_avg"),
        (partial(torch.optim.SGD, momentum=0.5), {}, "momentum_buffer"),
    ],
)
def test_perturbation_is_along_the_buffer_of_the_base_optimizer(base, options, name):
    start, batches = problem(steps=3)
    params = new(start)
    optimizer = MomentumSAM(params, base, rho=0.4, lr=0.01, **options)
    train(params, optimizer, batches)
    buffers = [optimizer.state[p][name] for p in params]
    length = torch.cat([v.flatten() for v in buffers]).norm()
    before = [p.detach().clone() for p in params]
    with optimizer.perturbed():
        for p, w, v in zip(params, before, buffers):
            torch.testing.assert_close(p.detach(), w - 0.4 * v / length)
    assert same([p.detach() for p in params], before)


def test_perturbed_weights_of_a_stack_are_written_bit_for_bit():
    w, out = nn.Parameter(torch.randn(3, 40)), torch.empty(3, 40)
    rho = [0.0, 0.1, 5.0]
    optimizer = MomentumSAM([w], torch.optim.AdamW, rho=rho, lr=0.1, stacked=True)
    for _ in range(3):  # without a momentum at first
        optimizer.write_perturbed(out)
        with optimizer.perturbed():
            assert torch.equal(out, w)
        w.grad = torch.randn(3, 40)
        optimizer.descend()


def test_maximize_perturbs_along_the_step_too():
    moved = []
    for maximize in (False, True):
        w = parameter()
        optimizer = MomentumSAM([w], rho=1.0, lr=0.0, momentum=0.9, maximize=maximize)
        w.grad = torch.tensor([0.6, -0.8])
        optimizer.descend()
        with optimizer.perturbed():
            moved.append((w - 1).tolist())
    assert moved[0] == pytest.approx([-0.6, 0.8])
    assert moved[1] == pytest.approx([0.6, -0.8])


WITHOUT = [
    (torch.optim.SGD, {}, "SGD without one. Pass momentum=0.9 to SGD"),
    (torch.optim.Adam, {"betas": (0.0, 0.99)}, "Adam without one"),
    (torch.optim.Adadelta, {}, "Adadelta without one"),
]


@pytest.mark.parametrize(("base", "options", "message"), WITHOUT)
def test_base_optimizer_without_momentum_raises(base, options, message):
    with pytest.raises(InvalidInputError, match=f"along the momentum.*{message}"):
        MomentumSAM([parameter()], base, lr=0.1, **options)


class Hidden(torch.optim.SGD):
    """Has an option for the momentum, and keeps no buffer."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["own"] = torch.zeros(2)


def test_base_optimizer_that_keeps_no_buffer_raises_in_the_second_step():
    w = parameter()
    optimizer = MomentumSAM([w], Hidden, lr=0.1, momentum=0.9)
    w.sum().backward()
    optimizer.descend()
    message = r"'momentum_buffer' or 'exp_avg'.*Hidden has only \['own'\]. Use SGD"
    with pytest.raises(InvalidInputError, match=message), optimizer.perturbed():
        pass


def test_step_calls_the_closure_once_at_the_perturbed_weights():
    start, batches = problem(steps=2)
    params = new(start)
    optimizer = MomentumSAM(params, rho=0.5, lr=0.1, momentum=0.9)
    train(params, optimizer, batches[:1])
    with optimizer.perturbed():
        expected = loss_of(params, batches[1]).item()
    assert expected != loss_of(params, batches[1]).item()
    losses = []
    closure = closure_of(optimizer, lambda: loss_of(params, batches[1]), losses)
    assert optimizer.step(closure).item() == expected
    assert losses == [expected]


def test_batch_norm_is_updated_in_the_only_pass():
    X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = MomentumSAM(net.parameters(), rho=0.5, lr=0.1, momentum=0.9)
    closure = closure_of(optimizer, lambda: net(X).square().mean())
    optimizer.step(closure)
    before = net[1].running_mean.clone()
    with optimizer.perturbed(), torch.no_grad():
        seen = net[0](X).mean(0)  # at the perturbed weights
        net(X)
    torch.testing.assert_close(net[1].running_mean, 0.9 * before + 0.1 * seen)
    optimizer.step(closure, freeze_norms=net)
    with optimizer.perturbed(freeze_norms=True):
        net(X)
    assert net[1].num_batches_tracked == 2


def test_reuse_raises_for_a_method_that_always_perturbs():
    optimizer = MomentumSAM([parameter()], lr=0.1, momentum=0.9)
    assert optimizer.perturbs
    with pytest.raises(InvalidInputError, match=r"in every step. Use `perturbed\(\)`"):
        optimizer.reuse()
