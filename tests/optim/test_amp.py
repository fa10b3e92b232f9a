"""Mixed precision: autocast, and gradient scaling with skipped steps."""

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.optim.reference import (
    METHODS,
    loss_of,
    make,
    new,
    over_sgd,
    perturb,
    problem,
    same,
    train,
)


def closure_of(params, optimizer, scaler, batch, factors=None):
    """Return a closure that multiplies the loss of each pass by its factor."""
    factors = [1.0, 1.0] if factors is None else factors

    def closure():
        optimizer.zero_grad()
        loss = loss_of(params, batch)
        scaler.scale(loss * factors.pop(0)).backward()
        return loss

    return closure


def snapshot(params, optimizer):
    state = optimizer.state_dict()["state"]
    values = [v for s in state.values() for v in s.values() if torch.is_tensor(v)]
    return [t.detach().clone() for t in [*params, *values]]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("method", METHODS)
def test_scaled_steps_equal_unscaled_ones(method, base, enabled):
    """Also with a parameter that has no entries."""
    start, batches = problem(dtype=torch.float32)
    plain, reference = make(method, base, start)
    train(plain, reference, batches)
    params, optimizer = make(method, base, start)
    optimizer.add_param_group({"params": new([torch.zeros(0, 3)])})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=enabled)
    for batch in batches:
        optimizer.step(closure_of(params, optimizer, scaler, batch), scaler=scaler)
        scaler.update()
    assert same(params, plain)  # scaling by powers of two is exact


@pytest.mark.parametrize("factors", [(float("inf"), 1.0), (1.0, float("nan"))])
@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("method", METHODS)
def test_step_with_a_non_finite_pass_is_skipped(method, base, factors):
    start, batches = problem(dtype=torch.float32)
    params, optimizer = make(method, base, start)
    if factors[0] == 1.0 and not optimizer.clean_pass:
        return  # there is no second pass
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in batches[:2]:
        optimizer.step(closure_of(params, optimizer, scaler, batch), scaler=scaler)
        scaler.update()
    before = snapshot(params, optimizer)
    left = list(factors)
    bad = closure_of(params, optimizer, scaler, batches[2], left)
    loss = optimizer.step(bad, scaler=scaler)
    assert left == ([1.0] if factors[0] == float("inf") else [])  # no second pass
    scaler.update()
    if optimizer.clean_pass:  # else the loss is that at the perturbed weights
        assert torch.equal(loss, loss_of(params, batches[2]))
    assert same(snapshot(params, optimizer), before)
    assert scaler.get_scale() == 2.0**9
    # training continues as without that batch
    for batch in batches[3:]:
        optimizer.step(closure_of(params, optimizer, scaler, batch), scaler=scaler)
        scaler.update()
    plain, reference = make(method, base, start)
    train(plain, reference, batches[:2] + batches[3:])
    assert same(params, plain)


@pytest.mark.parametrize("method", METHODS)
def test_scaled_mixed_step_equals_the_unscaled_one(method):
    start, batches = problem(dtype=torch.float32)
    plain, reference = make(method, "sgd", start)
    params, optimizer = make(method, "sgd", start)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    for batch in batches:
        reference.zero_grad()
        (loss_of(plain, batch) / 2).backward()
        perturb(reference, lambda b=batch: (loss_of(plain, b) / 2).backward())
        (loss_of(plain, batch) / 2).backward()
        reference.descend()

        optimizer.zero_grad()
        scaler.scale(loss_of(params, batch) / 2).backward()
        perturb(
            optimizer,
            lambda b=batch: scaler.scale(loss_of(params, b) / 2).backward(),
            grad_scale=scaler.get_scale(),
        )
        scaler.scale(loss_of(params, batch) / 2).backward()
        optimizer.descend(scaler=scaler)
        scaler.update()
    for mine, theirs in zip(params, plain):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert scaler.get_scale() == 2.0**15

    before = snapshot(params, optimizer)
    optimizer.zero_grad()
    factors = [float("inf"), 1.0] if optimizer.clean_pass else [1.0, float("inf")]
    scaler.scale(loss_of(params, batches[0]) * factors[0]).backward()
    with optimizer.perturbed(grad_scale=scaler.get_scale()):
        scaler.scale(loss_of(params, batches[0]) * factors[1]).backward()
    optimizer.descend(scaler=scaler)
    scaler.update()
    assert same(snapshot(params, optimizer), before)
    assert scaler.get_scale() == 2.0**14


def test_scaler_step_raises_with_the_correct_call():
    params, optimizer = make("sam", "sgd", problem()[0])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(params, problem()[1][0])).backward()
    with pytest.raises(InvalidInputError, match="step\\(closure, scaler=scaler\\)"):
        scaler.step(optimizer)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_enclosing_autocast_uses_the_moved_weights(method, mixed):
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(8, 5, generator=rng)
    y = torch.randint(2, (8,), generator=rng)

    def run(cached):
        net = nn.Linear(5, 2)
        with torch.no_grad():
            net.weight.copy_(X[:2])
            net.bias.zero_()
        optimizer, losses = over_sgd(method, net.parameters(), rho=1.0, lr=0.5), []

        def backward():
            loss = nn.functional.cross_entropy(net(X), y)
            loss.backward()
            losses.append(loss.item())

        def closure():
            optimizer.zero_grad()
            backward()

        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            for _ in range(3):
                if not mixed:
                    optimizer.step(closure)
                    continue
                closure()
                perturb(optimizer, backward)
                backward()
                optimizer.descend()
        return losses

    assert run(cached=True) == run(cached=False)
