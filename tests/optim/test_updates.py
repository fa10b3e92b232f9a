"""Compare the update with naive loops, closed forms and identities."""

import pytest
import torch

from sklearn_sharpbalance.optim import GSAM, OPTIMIZERS, SAM, FriendlySAM
from tests.optim.reference import (
    BASES,
    METHODS,
    closure_of,
    loss_of,
    make,
    naive_run,
    new,
    over_sgd,
    plain_steps,
    problem,
    same,
    train,
)


def assert_close(left, right, tol=1e-10):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=tol, atol=tol)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_step_equals_naive_loops(method, base):
    start, batches = problem()
    params, optimizer = make(method, base, start)
    train(params, optimizer, batches)
    assert_close(params, naive_run(method, base, start, batches))


BASE_CLASSES = [
    getattr(torch.optim, name)
    for name in torch.optim.__all__
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
    and isinstance(getattr(torch.optim, name), type)
]


NO_MOMENTUM = ("Adadelta", "Adafactor", "Adagrad", "ASGD", "Rprop")


@pytest.mark.parametrize("base", BASE_CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_zero_rho_equals_any_base_optimizer_bitwise(method, base):
    options = {"lr": 0.01}
    if method == "momentum_sam":
        if base.__name__ in NO_MOMENTUM:
            return  # raises; see the tests of MomentumSAM
        if base in (torch.optim.SGD, torch.optim.RMSprop):
            options["momentum"] = 0.9
    start, batches = problem(steps=3)
    start, flat = start[::2], [torch.zeros(4).double(), torch.zeros(2).double()]

    def loss(w, batch):  # Muon takes matrices only
        return loss_of([w[0], flat[0], w[1], flat[1]], batch)

    plain = new(start)
    plain_steps(plain, base(plain, **options), batches, loss)
    params = new(start)
    train(params, OPTIMIZERS[method](params, base, rho=0, **options), batches, loss)
    assert same(params, plain)
    assert not same(params, start)


def test_identities_between_methods():
    start, batches = problem()
    runs = {}
    for name, cls, options in [
        ("sam", SAM, {}),
        ("gsam", GSAM, {"alpha": 0}),
        ("friendly", FriendlySAM, {"sigma": 0}),
    ]:
        params = new(start)
        train(params, cls(params, rho=0.2, lr=0.1, **options), batches)
        runs[name] = params
    assert same(runs["sam"], runs["gsam"])
    assert same(runs["sam"], runs["friendly"])


def test_friendly_directions_equal_those_of_the_released_code():
    """For sigma = 1: along the gradient minus the average before it."""
    w = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer, average = FriendlySAM([w], rho=1.0, lmbda=0.6, lr=0.0), 0
    rng = torch.Generator().manual_seed(0)
    for g in torch.randn(12, 5, generator=rng, dtype=torch.float64):
        w.grad, noise = g.clone(), g - average
        with optimizer.perturbed():
            torch.testing.assert_close(w.detach(), noise / noise.norm())
        average = 0.6 * average + 0.4 * g


def test_step_ignores_stale_gradients_and_returns_the_clean_loss():
    start, batches = problem(steps=1)
    expected, reference = make("sam", "sgd", start)
    train(expected, reference, batches)
    params, optimizer = make("sam", "sgd", start)
    for p in params:
        p.grad = torch.full_like(p, 7.0)
    losses = []
    closure = closure_of(optimizer, lambda: loss_of(params, batches[0]), losses)
    with torch.no_grad():
        returned = optimizer.step(closure)
    assert same(params, expected)
    assert len(losses) == 2
    assert returned.item() == losses[0] < losses[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zero_gradient_gives_no_perturbation_and_no_nan(method, dtype):
    w = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = over_sgd(method, [w], rho=0.5, lr=0.1)
    (w * 0).sum().backward()
    with optimizer.perturbed():
        assert w.tolist() == [1, 1, 1]
        (w * 0).sum().backward()
    optimizer.descend()
    assert w.tolist() == [1, 1, 1]
    assert w.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_parameters_without_gradient_and_frozen_ones_do_not_move(method):
    used = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    unused = torch.nn.Parameter(torch.ones(2))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = over_sgd(method, [used, unused, frozen], rho=0.5, lr=0.1)
    used.square().sum().backward()
    frozen.grad = torch.full((2,), 9.0)  # from before it was frozen: not in the norm
    with optimizer.perturbed():
        if method == "momentum_sam":
            assert used.tolist() == [1, 2]  # in the first step
        elif method != "asam":
            assert used.tolist() == pytest.approx([1 + 0.5 / 5**0.5, 2 + 1 / 5**0.5])
        used.square().sum().backward()
        assert unused.tolist() == frozen.tolist() == [1, 1]
    optimizer.descend()
    assert unused.grad is frozen.grad is None
    assert unused.tolist() == frozen.tolist() == [1, 1]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gsam_treats_a_missing_gradient_of_a_pass_as_zero(set_to_none):
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    optimizer = GSAM(params, rho=0.0, alpha=0.5, lr=0.1)
    g, g_p = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, 1.0, 0.0])
    (params[0] * g[0] + params[2] * g[2]).sum().backward()
    with optimizer.perturbed(set_to_none=set_to_none):
        (params[0] * g_p[0] + params[1] * g_p[1]).sum().backward()
    expected = g_p - 0.5 * (g - g @ g_p / (g_p @ g_p) * g_p)
    assert [p.grad.item() for p in params] == expected.tolist()


def test_each_group_has_its_rho_and_the_norm_is_joint():
    a = torch.nn.Parameter(torch.tensor([0.0]))
    b = torch.nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
    c = torch.nn.Parameter(torch.tensor([0.0]))
    groups = [{"params": [a], "rho": 1.0}, {"params": [b]}, {"params": [c], "rho": 0.0}]
    optimizer = SAM(groups, rho=2.0, lr=0.1)
    (2 * a + 3 * b + 6 * c).sum().backward()
    with optimizer.perturbed():
        assert a.item() == pytest.approx(2 / 7)
        assert b.item() == pytest.approx(2 * 3 / 7)
        assert c.item() == 0


def test_maximize_reverses_the_perturbation():
    w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = SAM([w], rho=1.0, lr=0.1, maximize=True)
    w.square().sum().backward()
    with optimizer.perturbed():
        assert w.tolist() == pytest.approx([2.4, 3.2])


def test_gsam_copies_a_gradient_that_the_next_pass_overwrites():
    # As with DistributedDataParallel(gradient_as_bucket_view=True).
    w, memory = torch.nn.Parameter(torch.zeros(2)), torch.zeros(2)
    optimizer = OPTIMIZERS["gsam"]([w], rho=0.0, alpha=0.5, lr=1.0)

    def backward(gradient):
        memory.copy_(torch.tensor(gradient))
        w.grad = memory.view(2)

    backward([1.0, 2.0])
    with optimizer.perturbed():
        backward([1.0, 0.0])
    assert w.grad.tolist() == [1.0, -1.0]
