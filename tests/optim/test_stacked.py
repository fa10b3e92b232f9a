"""Compare members stacked along a leading axis with one optimizer per member."""

import pytest
import torch

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import SAM
from tests.cases import rest_slow
from tests.optim.reference import BASES, METHODS, loss_of, make, problem, train

M = 3
RHOS = [0.05, 0.0, 0.4]


def stacked_loss(weights, batches):
    """Return the sum of the members' losses, so that their gradients are separate."""
    return sum(loss_of([w[i] for w in weights], b) for i, b in enumerate(batches))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", rest_slow([torch.float64, torch.float32]))
def test_stacked_members_equal_separate_optimizers(method, base, dtype):
    problems = [problem(seed, dtype=dtype) for seed in range(M)]
    separate = []
    for (start, batches), rho in zip(problems, RHOS):
        params, optimizer = make(method, base, start, rho=rho)
        train(params, optimizer, batches)
        separate.append(params)
    start = [torch.stack(w) for w in zip(*(start for start, _ in problems))]
    params, optimizer = make(method, base, start, rho=RHOS, stacked=True)
    train(params, optimizer, zip(*(b for _, b in problems)), stacked_loss)
    tol = 1e-6 if dtype is torch.float32 else 1e-8
    # Adam divides by the root of tiny squares, which amplifies rounding errors.
    tol *= 10 if base != "sgd" else 1
    for i in range(M):
        for mine, theirs in zip(params, separate[i]):
            torch.testing.assert_close(mine[i], theirs, rtol=tol, atol=tol)


@pytest.mark.parametrize("rho", [0.2, torch.tensor(0.2), torch.full((M,), 0.2)])
def test_rho_may_be_a_number_list_or_tensor(rho):
    w = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]))
    optimizer = SAM([w], rho=rho, stacked=True, lr=0.1)
    w.square().sum().backward()
    with optimizer.perturbed():
        moved = (w.detach() - torch.tensor([[3.0, 4.0], [0, 0], [0, 2]])).norm(dim=1)
    assert moved.tolist() == pytest.approx([0.2, 0.0, 0.2], rel=1e-5)


def test_friendly_scale_per_member():
    (start, batches) = problem(steps=1, dtype=torch.float64)
    stack = [torch.stack([w, w]) for w in start]
    params, optimizer = make("friendly_sam", "sgd", stack, stacked=True)
    scale = torch.tensor([0.5, 0.0], dtype=torch.float64)
    (scale[0] * loss_of([p[0] for p in params], batches[0])).backward()
    with optimizer.perturbed(grad_scale=scale):
        pass
    alone, reference = make("friendly_sam", "sgd", start)
    loss_of(alone, batches[0]).backward()
    with reference.perturbed():
        pass
    for i in range(4):
        mine = optimizer.state_dict()["state"][i]["gradient_average"]
        theirs = reference.state_dict()["state"][i]["gradient_average"]
        torch.testing.assert_close(mine[0], theirs)
        assert not mine[1].any()


@pytest.mark.parametrize(
    ("shapes", "rho", "message"),
    [
        ([(2, 3), (3, 3)], 0.1, r"leading member axis.*\(2, 3\), \(3, 3\)"),
        ([(2, 3), ()], 0.1, r"leading member axis.*\(\), \(2, 3\)"),
        ([(2, 3)], [0.1, 0.2, 0.3], r"rho has shape \(3,\) for 2 stacked members"),
        ([(2, 3)], [0.1, -0.2], r"rho must be a float in the range \[0.0, inf\)"),
    ],
)
def test_invalid_stacks_raise(shapes, rho, message):
    params = [torch.nn.Parameter(torch.zeros(s)) for s in shapes]
    with pytest.raises(InvalidInputError, match=message):
        SAM(params, rho=rho, stacked=True, lr=0.1)


def test_list_of_rho_without_a_stacked_group_raises():
    w = torch.nn.Parameter(torch.zeros(2, 3))
    with pytest.raises(InvalidInputError, match=r"shape \(2,\), but the group is not"):
        SAM([w], rho=[0.1, 0.2], lr=0.1)
