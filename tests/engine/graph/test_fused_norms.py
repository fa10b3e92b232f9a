"""BatchNorm fused with later operations; in Triton's interpreter without a GPU."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from sklearn_sharpbalance import ResNet18, SmallCNN
from sklearn_sharpbalance.engine.graph import fused_norms
from sklearn_sharpbalance.engine.graph.fused_norms import (
    FusedNorms,
    NormStep,
    fuse_norms,
)
from sklearn_sharpbalance.members.module import MemberModule


def steps(module):
    return [layer for layer in module.modules() if isinstance(layer, NormStep)]


def check_kernels(device):
    """Compare outputs, statistics and gradients with float64 without fusion."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*size):
        return torch.randn(size, generator=generator, device=device)

    def check(size, relu, add, dtype, tol):
        norm = nn.BatchNorm2d(size[1], device=device)
        with torch.no_grad():
            norm.weight.copy_(draw(size[1]))
            norm.bias.copy_(draw(size[1]))
        exact = copy.deepcopy(norm).double()
        # Far from zero, where sums of squares cancel.
        x = (draw(*size) + 10).to(dtype).requires_grad_()
        residual = draw(*size).to(dtype).requires_grad_() if add else None
        grad = draw(*size).to(dtype)
        step = NormStep(norm, relu)
        got = step.fused(x, residual)
        got.backward(grad)
        x64 = x.detach().double().requires_grad_()
        r64 = residual.detach().double().requires_grad_() if add else None
        want = exact(x64) + r64 if add else exact(x64)
        want = want.relu() if relu else want
        want.backward(grad.double())
        pairs = [(got, want), (x.grad, x64.grad)]
        pairs += zip(
            [p.grad for p in norm.parameters()], (exact.weight.grad, exact.bias.grad)
        )
        pairs += zip(norm.buffers(), exact.buffers())
        if add:
            pairs.append((residual.grad, r64.grad))
        for a, b in pairs:
            error = (a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-3)
            assert error < tol, (size, relu, add, dtype, error)
        assert got.dtype == dtype
        assert not step.counter.any()

    exact, half = (torch.float32, 1e-5), (torch.bfloat16, 2e-2)
    for relu, add in ((False, False), (True, False), (False, True), (True, True)):
        check((7, 5, 3, 2), relu, add, *exact)
        if relu == add or device != "cpu":  # half of the cases in the interpreter
            check((7, 5, 3, 2), relu, add, *half)
            check((9, 70, 3, 2), relu, add, *exact)
    check((1, 3, 2, 4), True, True, *exact)
    check((300, 16, 5, 4), True, True, *exact)  # several programs
    diverged = NormStep(nn.BatchNorm2d(3, device=device), relu=True)
    assert diverged.fused(draw(4, 3, 2, 2).log(), None).isnan().all()


@pytest.mark.slow
def test_kernels_equal_torch(interpreted):
    interpreted(
        "from tests.engine.graph.test_fused_norms import check_kernels as check", "cpu"
    )


@pytest.mark.gpu
def test_kernels_on_a_gpu():
    check_kernels("cuda")


def test_fused_resnet_gives_the_same_outputs():
    torch.manual_seed(0)
    module = ResNet18(width=4)
    plain, fused = copy.deepcopy(module), fuse_norms(module)
    assert len(steps(fused)) == 20
    assert sum(step.relu for step in steps(fused)) == 17  # all but three shortcuts
    x = torch.randn(4, 3, 8, 8)
    for net in (plain, fused):
        net(x).square().sum().backward()
    for (name, a), b in zip(plain.named_parameters(), module.parameters()):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    for a, b in zip(plain.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(a, b)


class Block(nn.Module):
    """One norm layer; subclasses define what follows it."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x):
        return self.after(self.norm(self.conv(x)), x)


def followed_by(after):
    """Return a function that makes a block with ``after(y, x)`` behind its norm."""

    def make():
        module = Block()
        module.after = after
        return module

    return make


def adds_in_place(y, x):
    y += x
    return torch.relu_(y)


def shaped(place, kind):
    """Return a function that builds a chain with a hook or a custom forward."""

    def make():
        body = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU())
        module = nn.Sequential(nn.Conv2d(2, 2, 1), body)
        part = {"": module, "body": body, "norm": body[0], "relu": body[1]}[place]
        if kind == "forward":
            forward = part.forward
            part.forward = lambda x: forward(x) - 1
        elif kind == "pre":
            part.register_forward_pre_hook(lambda layer, args: (args[0] - 1,))
        elif kind == "after":
            part.register_forward_hook(lambda layer, args, out: out - 1)
        else:
            part.register_full_backward_hook(lambda layer, grads, _: (2 * grads[0],))
        return module

    return make


KINDS = ("forward", "pre", "after", "backward")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("place", "clamps"), [("", None), ("body", None), ("norm", None), ("relu", [False])]
)
def test_hooks_and_custom_forwards_are_kept(place, clamps, kind):
    torch.manual_seed(0)
    module = shaped(place, kind)()
    torch.manual_seed(0)
    plain, fused = shaped(place, kind)(), fuse_norms(module)
    if clamps is None:
        assert fused is None
        return
    assert [step.relu for step in steps(fused)] == clamps
    x = torch.randn(3, 2, 4, 4)
    ours, theirs = fused(x), plain(x)
    torch.testing.assert_close(ours, theirs)
    for out in (ours, theirs):
        out.square().sum().backward()
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


class KeepsNorm(Block):
    """Trains with frozen statistics, as in fine-tuning."""

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def after(self, y, x):
        return y.relu()


class ByKeyword(Block):
    def forward(self, x):
        return self.norm(input=self.conv(x)).relu()


class Counting(Block):  # a layer whose output is not used
    def __init__(self):
        super().__init__()
        self.extra = nn.BatchNorm2d(2, affine=False)

    def after(self, y, x):
        self.extra(x)
        return y.relu()


class Branching(Block):
    def after(self, y, x):
        return y if y.sum() > 0 else -y


@pytest.mark.parametrize(
    ("kind", "clamps"),
    [
        (followed_by(lambda y, x: y.relu() + y), [False]),  # two uses of the norm
        (followed_by(lambda y, x: (y + 1).relu()), [False]),
        (followed_by(lambda y, x: (y + x).relu() * (y + x)), [False]),
        (followed_by(adds_in_place), [True]),
        (followed_by(lambda y, x: torch.add(y, x, alpha=2).relu()), [False]),
        (ByKeyword, []),
        (Counting, [True]),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)), [False]),
        (lambda: nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(inplace=True)), [True]),
        (KeepsNorm, None),
        (Branching, None),
        (lambda: nn.Sequential(nn.BatchNorm2d(2, affine=False), nn.ReLU()), None),
        (lambda: nn.Sequential(nn.BatchNorm2d(2, momentum=None), nn.ReLU()), None),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), None),
    ],
)
def test_unsafe_layers_are_not_fused(kind, clamps):
    torch.manual_seed(0)
    module = kind()
    fused = fuse_norms(module)
    if clamps is None:
        assert fused is None
        return
    assert [step.relu for step in steps(fused)] == clamps
    x, plain = torch.randn(3, 2, 4, 4), copy.deepcopy(module)
    torch.testing.assert_close(fused(x), plain(x))
    for a, b in zip(module.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("run", [True, False])
def test_fusion_requires_working_kernels_on_a_gpu(run, monkeypatch):
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(fused_norms, "_norm_devices", lambda module: {gpu})
    monkeypatch.setattr(fused_norms, "kernels_run_on", lambda device: run)
    assert (fuse_norms(ResNet18(width=4)) is not None) == run


class DependsOnTheMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x):
        x = self.norm(x)
        return 2 * x if self.training else x


def test_layers_are_fused_in_training_mode():
    """The mode of the module does not matter and is not changed."""
    module = DependsOnTheMode().eval()
    fused = fuse_norms(module)
    assert not module.training
    assert not module.norm.training
    x = torch.randn(3, 2, 4, 4)
    want = 2 * functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(fused.train()(x), want)


def test_the_original_module_is_not_changed():
    owner = MemberModule(SmallCNN, in_channels=1, n_classes=3)
    own, names = owner.module, list(owner.state_dict())
    norms = FusedNorms(owner, wanted=True)
    assert steps(owner)
    norms.close()
    assert owner.module is own
    assert list(owner.state_dict()) == names
    norms.open()
    assert owner.module is norms.fused
