"""LookSAM: SAM in every k-th step, and its orthogonal component in the others."""

import copy

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import SAM, LookSAM
from tests.optim.reference import closure_of, loss_of, make, new, problem, same, train


def run(start, batches, kind=LookSAM, **options):
    params = new(start)
    optimizer = kind(params, rho=0.2, lr=0.1, momentum=0.9, **options)
    train(params, optimizer, batches)
    return params


def test_k_of_one_is_sam_bitwise():
    start, batches = problem()
    assert same(run(start, batches, k=1), run(start, batches, kind=SAM))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_closure_is_called_twice_in_every_kth_step(k):
    start, batches = problem(steps=7)
    params = new(start)
    optimizer = LookSAM(params, k=k, lr=0.1)
    for step, batch in enumerate(batches):
        losses, before = [], loss_of(params, batch).item()
        closure = closure_of(optimizer, lambda b=batch: loss_of(params, b), losses)
        assert optimizer.perturbs is (step % k == 0)
        assert optimizer.step(closure).item() == losses[0] == before
        assert len(losses) == (2 if step % k == 0 else 1)
    assert optimizer.count == 7
    assert type(optimizer).passes_per_sample({"k": k}) == 1 + 1 / k


def states(optimizer):
    return list(optimizer.state_dict()["state"].values())


def test_component_within_rounding_errors_counts_as_zero():
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = LookSAM([w], rho=0.1, lr=0.1)
    w.grad = torch.tensor([0.3, 0.7])
    with optimizer.perturbed():
        w.grad = torch.tensor([0.3, 0.7]) * 1.37  # parallel up to rounding
    w.grad = torch.tensor([1.0, 1.0])
    optimizer.reuse()
    assert w.grad.tolist() == [1, 1]


@pytest.mark.parametrize("bad", [0.0, float("inf"), float("nan")])
def test_component_is_kept_if_a_gradient_is_zero_or_not_finite(bad):
    w = nn.Parameter(torch.zeros(2, 2))  # two members
    optimizer = LookSAM([w], rho=0.0, k=3, lr=0.1, stacked=True)
    w.grad = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    with optimizer.perturbed():
        w.grad = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    w.grad = torch.tensor([[bad, bad], [0.0, 1.0]])
    with optimizer.perturbed():
        w.grad = torch.tensor([[bad, bad], [3.0, 1.0]])
    (entry,) = states(optimizer)
    assert entry["orthogonal_direction"].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert entry["sam_steps"] == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_step_that_reuses_is_skipped_if_its_gradient_is_not_finite(enabled):
    start, batches = problem(dtype=torch.float32)
    params, optimizer = make("look_sam", "sgd", start)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=enabled)

    def step(batch, factor=1.0):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(params, batch)
            scaler.scale(loss * factor).backward()
            return loss

        optimizer.step(closure, scaler=scaler)
        scaler.update()

    step(batches[0])
    if enabled:
        assert not optimizer.perturbs
        before = copy.deepcopy(optimizer.state_dict()["state"])
        step(batches[1], float("inf"))
        torch.testing.assert_close(optimizer.state_dict()["state"], before)
        assert scaler.get_scale() == 2.0**9
    for batch in batches[2:]:
        step(batch)
    plain, reference = make("look_sam", "sgd", start)
    train(plain, reference, batches[:1] + batches[2:])
    assert same(params, plain)


def test_groups_with_different_k_raise():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "k": k} for k in (2, 3)]
    with pytest.raises(InvalidInputError, match=r"k must be the same.*got \[2, 3\]"):
        LookSAM(groups, lr=0.1)
