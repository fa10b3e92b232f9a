"""Learning-rate schedulers of torch change the base optimizer and do not warn."""

import warnings

import pytest
import torch
from torch.optim import lr_scheduler

from sklearn_sharpbalance.optim import SAM
from tests.optim.reference import loss_of, new, plain_steps, problem, same, train

SCHEDULERS = {
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


def advance(scheduler):
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


def by_closure(params, optimizer, batch):
    train(params, optimizer, [batch])


def by_context(params, optimizer, batch):
    optimizer.zero_grad()
    loss_of(params, batch).backward()
    with optimizer.perturbed():
        loss_of(params, batch).backward()
    optimizer.descend()


def plain_step(params, optimizer, batch):
    plain_steps(params, optimizer, [batch])


def run(make_optimizer, make_scheduler, step):
    start, batches = problem(steps=5)
    params = new(start)
    optimizer = make_optimizer(params)
    trace = []
    scheduler = make_scheduler(optimizer)
    for batch in batches:
        step(params, optimizer, batch)
        advance(scheduler)
        group = optimizer.param_groups[0]
        trace.append((group["lr"], group.get("momentum"), group.get("betas")))
    return params, trace


SGD, ADAM = (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {})
RUNS = [*((name, *SGD) for name in SCHEDULERS), ("one cycle", *ADAM)]


@pytest.mark.parametrize("step", [by_closure, by_context])
@pytest.mark.parametrize(("name", "base", "kwargs"), RUNS)
def test_scheduled_run_with_zero_rho_is_the_plain_one(name, base, kwargs, step):
    """One cycle changes the momentum of SGD and the betas of Adam, too."""
    schedule, kwargs = SCHEDULERS[name], {"lr": 0.05, **kwargs}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        params, trace = run(lambda p: SAM(p, base, rho=0, **kwargs), schedule, step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, expected = run(lambda p: base(p, **kwargs), schedule, plain_step)
    assert trace == expected
    assert len(set(trace)) > 1
    assert same(params, plain)
