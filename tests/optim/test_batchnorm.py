"""The perturbed pass uses batch statistics and leaves running statistics unchanged."""

import threading
from itertools import product

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.optim import SAM, frozen_batch_statistics
from tests.cases import rest_slow
from tests.optim.reference import METHODS, closure_of, over_sgd, same

X = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv, self.norm = nn.Conv2d(3, 5, 1), norm
            self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


NORMS = {
    "batch": lambda: nn.BatchNorm2d(5),
    "cumulative": lambda: nn.BatchNorm2d(5, momentum=None),
    "instance": lambda: nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
    "sync": lambda: nn.SyncBatchNorm(5),
}


def buffers(module):
    return [b.clone() for b in module.buffers()]


def loss_of(net):
    return net(X).square().mean()


def step(net, optimizer, mode):
    optimizer.zero_grad()
    if mode == "closure":
        optimizer.step(closure_of(optimizer, lambda: loss_of(net)))
        return
    loss_of(net).backward()
    with optimizer.perturbed(freeze_norms=True if mode == "hook" else net):
        loss_of(net).backward()
    optimizer.descend()


@pytest.mark.parametrize("mode", ["closure", "hook", "module"])
@pytest.mark.parametrize("kind", ["batch", "cumulative", "instance"])
def test_running_statistics_are_updated_once_per_step(kind, mode):
    net, once = Net(NORMS[kind]()), Net(NORMS[kind]())
    optimizer = SAM(net.parameters(), rho=0.5, lr=0.1)
    step(net, optimizer, mode)
    loss_of(once)
    assert same(buffers(net), buffers(once))
    step(net, optimizer, mode)  # the layers update them again
    assert not same(buffers(net), buffers(once))
    assert net.norm.track_running_stats


@pytest.mark.parametrize("method", METHODS)
def test_statistics_are_updated_once_in_each_step_of_any_method(method):
    net = Net(NORMS["batch"]())
    optimizer = over_sgd(method, net.parameters(), rho=0.5, lr=0.1)
    for _ in range(5):
        optimizer.step(closure_of(optimizer, lambda: loss_of(net)))
    assert net.norm.num_batches_tracked == 5


@pytest.mark.parametrize("kind", ["batch", "cumulative", "instance"])
def test_perturbed_pass_uses_batch_statistics(kind):
    net, free = Net(NORMS[kind]()), Net(NORMS[kind]())
    grads = []
    for module, freeze in ((net, True), (free, False)):
        optimizer = SAM(module.parameters(), rho=0.5, lr=0.1)
        loss_of(module).backward()
        with optimizer.perturbed(freeze_norms=freeze):
            loss_of(module).backward()
        grads.append([p.grad for p in module.parameters()])
    assert same(*grads)
    assert not same(buffers(net), buffers(free))


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_context_restores_the_layers_also_after_an_exception(kind, explicit):
    net = Net(NORMS[kind]())
    before = buffers(net)
    keys = list(net.state_dict())

    def fail():
        if kind != "sync":  # needs a GPU
            net(X)
        raise KeyError("inside")

    freezing = frozen_batch_statistics(net if explicit else None)
    with pytest.raises(KeyError, match="inside"), freezing:
        fail()
    assert same(buffers(net), before)
    assert list(net.state_dict()) == keys
    assert net.norm.track_running_stats
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("kind", ["batch", "instance"])
def test_layers_in_evaluation_mode_are_not_affected(kind):
    net = Net(NORMS[kind]())
    net(X)
    net.eval()
    expected = net(X)
    for module in (net, None):
        with frozen_batch_statistics(module):
            assert torch.equal(net(X), expected)


def test_other_threads_still_update_their_statistics():
    mine, theirs = Net(NORMS["batch"]()), Net(NORMS["batch"]())
    with frozen_batch_statistics():
        thread = threading.Thread(target=theirs, args=(X,))
        thread.start()
        thread.join()
        mine(X)
    assert theirs.norm.num_batches_tracked == 1
    assert mine.norm.num_batches_tracked == 0


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize(
    ("is_compiled", "kind"),
    rest_slow(
        [(False, "batch"), (False, "instance"), (True, "batch"), (True, "instance")],
        keep=3,
    ),
)
def test_closure_that_first_predicts_in_evaluation_mode(kind, is_compiled):
    torch._dynamo.reset()
    net, clean = Net(NORMS[kind]()), Net(NORMS[kind]())
    called = torch.compile(net, backend="eager") if is_compiled else net
    optimizer = SAM(net.parameters(), lr=0.1)

    def loss():
        net.eval()
        with torch.no_grad():
            labels = called(X).argmax(1)
        net.train()
        return nn.functional.cross_entropy(called(X), labels)

    optimizer.step(closure_of(optimizer, loss))
    clean(X)
    torch.testing.assert_close(buffers(net), buffers(clean))


COMPILED = {
    "torch.compile(net)": lambda net, **options: torch.compile(net, **options),
    "net.compile()": lambda net, **options: net.compile(**options) or net,
}


@pytest.mark.filterwarnings("ignore:Using `torch.compile")  # torch warns for any hook
@pytest.mark.parametrize(
    ("how", "explicit", "fullgraph"),
    rest_slow(
        product(COMPILED, [False, True], [False, True]),
        [("torch.compile(net)", True, True), ("net.compile()", False, False)],
    ),
)
def test_compiled_module_equals_the_eager_one(how, explicit, fullgraph):
    # Dynamo only: the code generator does not change what is traced.
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    net, eager = Net(NORMS["batch"]()), Net(NORMS["batch"]())
    compiled = COMPILED[how](net, backend=backend, fullgraph=fullgraph)
    optimizer = SAM(net.parameters(), rho=0.5, lr=0.1, momentum=0.9)
    reference = SAM(eager.parameters(), rho=0.5, lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(compiled).backward()
        with optimizer.perturbed(freeze_norms=net if explicit else True):
            loss_of(compiled).backward()
        optimizer.descend()
        step(eager, reference, "hook")
    assert net.norm.num_batches_tracked == 3
    assert len(graphs) == 2  # one with updates and one with frozen layers
    assert not compiled._forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    for mine, theirs in zip(
        net.state_dict().values(), eager.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
