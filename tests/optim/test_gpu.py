"""CUDA: the same numbers, no synchronisation, and capture in a graph."""

import contextlib

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.optim import OPTIMIZERS
from tests.optim.reference import (
    BASES,
    METHODS,
    OPTIONS,
    closure_of,
    make,
    naive_run,
    perturb,
    problem,
    train,
)

pytestmark = pytest.mark.gpu


def on_gpu(start, batches):
    return [w.cuda() for w in start], [(X.cuda(), y.cuda()) for X, y in batches]


@contextlib.contextmanager
def no_waiting():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def small_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * 36, 4),
        )  # fmt: skip
    return net.cuda()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_step_equals_naive_loops(method, base):
    start, batches = problem()
    params, optimizer = make(method, base, [w.cuda() for w in start])
    train(params, optimizer, on_gpu(start, batches)[1])
    expected = naive_run(method, base, start, batches)
    for p, w in zip(params, expected):
        torch.testing.assert_close(p.detach().cpu(), w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_step_never_waits_for_the_device(method, stacked):
    w = nn.Parameter(torch.randn(3, 50, device="cuda"))
    rho = [0.1, 0.2, 0.3] if stacked else 0.1
    options = {**OPTIONS[method], "stacked": stacked, "lr": 0.1, "momentum": 0.9}
    optimizer = OPTIMIZERS[method]([w], rho=rho, **options)

    closure = closure_of(optimizer, lambda: torch.cos(w).sum())
    optimizer.step(closure)
    fraction = torch.ones(3 if stacked else (), device="cuda") / 2
    with no_waiting():
        optimizer.step(closure)
        closure()
        perturb(
            optimizer,
            lambda: torch.cos(w).sum().backward(),
            set_to_none=False,
            grad_scale=fraction,
        )
        optimizer.descend()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "look_sam"])
def test_mixed_step_in_a_cuda_graph_equals_the_eager_one(method, base, set_to_none):
    rng = torch.Generator().manual_seed(1)
    batches = [torch.randn(16, 3, 8, 8, generator=rng).cuda() for _ in range(4)]
    static = batches[0].clone()
    cls, kwargs = {
        # only the fused variant of SGD reads its learning rate on the device
        "sgd": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
        "adam": (torch.optim.Adam, {"capturable": True}),
    }[base]

    def build():
        net = small_net()
        more = {**OPTIONS[method], **kwargs, "lr": torch.tensor(0.01, device="cuda")}
        return net, OPTIMIZERS[method](net.parameters(), cls, 0.1, **more)

    def step(net, optimizer, X):
        optimizer.zero_grad(set_to_none=set_to_none)
        (net(X[:8]).square().mean() / 2).backward()
        with optimizer.perturbed(freeze_norms=net, set_to_none=set_to_none):
            (net(X[:8]).square().mean() / 2).backward()
        (net(X[8:]).square().mean() / 2).backward()
        optimizer.descend()

    eager, optimizer = build()
    for X in (static, static, static, *batches):
        step(eager, optimizer, X)

    net, optimizer = build()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(net, optimizer, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(net, optimizer, static)
    for X in batches:
        static.copy_(X)
        graph.replay()
    for mine, theirs in zip(net.state_dict().values(), eager.state_dict().values()):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert net[1].num_batches_tracked.item() == 2 * 7
