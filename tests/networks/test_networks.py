"""Common tests of all networks, and comparisons with torchvision."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks import (
    MLP,
    ResNet,
    ResNet18,
    SmallCNN,
    SmallResNet,
    WideResNet,
    default_network,
)
from tests.cases import rest_slow

SMALL = {
    "mlp": lambda: MLP(12, 5, hidden=(7, 6), dropout=0.1, batch_norm=True),
    "mlp_linear": lambda: MLP(12, 5, hidden=()),
    "small_cnn": lambda: SmallCNN(3, 5, width=4),
    "small_resnet": lambda: SmallResNet(3, 5, width=4),
    "resnet": lambda: ResNet((1, 2), n_classes=5, width=4),
    "resnet18": lambda: ResNet18(n_classes=5, width=4),
    "wide_resnet": lambda: WideResNet(10, 1, n_classes=5, dropout=0.1),
}


def seeded(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SMALL[name]()


@pytest.fixture(params=SMALL)
def net(request):
    return seeded(request.param)


def batch(net, n=6):
    shape = (12,) if isinstance(net, MLP) else (3, 16, 16)
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))


def n_weights(net):
    return sum(p.numel() for p in net.parameters())


def test_logits_have_one_column_per_class(net):
    logits = net(batch(net))
    assert logits.shape == (6, 5)
    # Rows of logits do not sum to one.
    assert not torch.allclose(logits.sum(1), torch.ones(6), atol=1e-3)


def test_gradient_reaches_every_weight(net):
    loss = F.cross_entropy(net(batch(net)), torch.tensor([0, 1, 2, 3, 4, 0]))
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("name", [name for name in SMALL if "mlp" not in name])
def test_channels_last_changes_nothing(name):
    net = SMALL[name]().eval()
    X = batch(net)
    expected = net(X)
    net.to(memory_format=torch.channels_last)
    actual = net(X.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_no_layer_works_in_place(net):
    assert not any(getattr(layer, "inplace", False) for layer in net.modules())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: ResNet18(), 11_173_962),
        (lambda: ResNet18(n_classes=100), 11_220_132),
        (lambda: ResNet((3, 4, 6, 3)), 21_282_122),
        (lambda: WideResNet(40, 2), 2_243_546),
        (lambda: WideResNet(28, 10), 36_479_194),
        (lambda: MLP(64, 10), 65 * 128 + 129 * 128 + 129 * 10),
    ],
)
def test_number_of_weights_equals_the_published_one(build, expected):
    with torch.device("meta"):
        assert n_weights(build()) == expected


@pytest.mark.parametrize("size", rest_slow([8, 9, 28, 32], keep=2))
@pytest.mark.parametrize("build", [SmallCNN, SmallResNet, ResNet18])
def test_pictures_of_any_size(build, size):
    net = build(1, 3, width=2).eval()
    assert net(torch.zeros(2, 1, size, size)).shape == (2, 3)
    assert net(torch.zeros(2, 1, size + 3, size)).shape == (2, 3)


@pytest.mark.parametrize("net", [MLP(4, 3, hidden=(8,)), SmallCNN(1, 3)])
def test_slices_of_sequential_networks(net):
    body = net[:-1]
    assert type(body) is nn.Sequential
    assert len(body) == len(net) - 1
    assert net[-1] is list(net)[-1]


def torchvision_resnet18(n_classes):
    net = models.resnet18(num_classes=n_classes)
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def copy_in_order(source, target):
    """Copy weights between networks that register layers in the same order."""
    ours = list(source.state_dict().values())
    names = list(target.state_dict())
    assert len(ours) == len(names)
    target.load_state_dict(dict(zip(names, ours)))
    return target.eval()


def test_resnet18_equals_torchvision_with_the_small_stem():
    net = ResNet18(n_classes=7).eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.1, 0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    oracle = copy_in_order(net, torchvision_resnet18(7))
    X = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(net(X), oracle(X), rtol=1e-4, atol=1e-4)


def test_wide_resnet_block_shortcut_takes_the_activated_input():
    net = WideResNet(10, 2, n_classes=3).eval()
    block = net.groups[0][0]
    x = torch.randn(2, 16, 8, 8)
    active = F.relu(block.bn1(x))
    inner = F.conv2d(active, block.conv1.weight, padding=1)
    inner = F.conv2d(F.relu(block.bn2(inner)), block.conv2.weight, padding=1)
    expected = inner + F.conv2d(active, block.shortcut.weight)
    torch.testing.assert_close(block(x), expected)


def test_convolutions_have_he_initialisation():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ResNet18(width=32)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 10_000:
            fan_out = layer.out_channels * layer.kernel_size[0] ** 2
            expected = (2 / fan_out) ** 0.5
            assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(0, 3), "n_features must be an int .* got 0"),
        (lambda: MLP(4, 2.5), "n_classes must be an int .* got 2.5"),
        (lambda: MLP(4, 3, hidden=(8, -1)), r"hidden\[1\] must be an int"),
        (lambda: MLP(4, 3, hidden=None), "hidden must be a width or .* got None"),
        (lambda: MLP(4, 3, activation="relo"), "Unknown activation 'relo'"),
        (lambda: MLP(4, 3, activation=["relu"]), r"Unknown activation \['relu'\]"),
        (lambda: MLP(4, 3, dropout=1.0), "dropout must be a float .* got 1.0"),
        (lambda: SmallCNN(True, 3), "in_channels must be an int"),
        (lambda: ResNet((2, 0)), r"blocks\[1\] must be an int"),
        (lambda: ResNet(()), r"blocks must have at least one stage, got \(\)"),
        (lambda: ResNet(3), "blocks must have at least one stage, got 3"),
        (lambda: WideResNet(39), r"depth must be 6 n \+ 4 .* got 39"),
        (lambda: WideResNet(10, dropout="0.1"), "dropout must be a float .* got '0.1'"),
    ],
)
def test_wrong_sizes_raise(build, message):
    with pytest.raises(InvalidInputError, match=message):
        build()


@pytest.mark.parametrize("name", rest_slow(SMALL, ["mlp", "mlp_linear", "wide_resnet"]))
def test_a_network_is_exported_for_batches_of_any_size(name):
    net = seeded(name).eval()
    sizes = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(net, (batch(net, 3),), dynamic_shapes=(sizes,))
    for n in (1, 6):
        torch.testing.assert_close(program.module()(batch(net, n)), net(batch(net, n)))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5,), MLP),
        ((1, 8, 8), SmallResNet),
        ((3, 32, 32), SmallResNet),
        ((3, 64, 48), SmallResNet),
        ((3, 4, 4), MLP),
        ((20, 6), MLP),
        ((2, 3, 4, 5), MLP),
    ],
)
def test_network_fits_the_shape(shape, expected):
    module, kwargs = default_network(shape, 4)
    assert module is expected
    assert module(**kwargs)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_empty_shapes_raise(shape):
    with pytest.raises(InvalidInputError, match="input_shape must contain the sizes"):
        default_network(shape, 4)
