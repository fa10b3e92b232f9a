"""Compare the gradient norms of convolutions with autograd."""

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.autodiff.layer_rules import RULES

IMAGE, SIGNAL, VOLUME = (4, 7, 10), (4, 9), (4, 3, 4, 5)

# name: (size of the input, arguments); from 4 to 6 channels.
CONVOLUTIONS = {
    "same_size": (IMAGE, dict(kernel_size=3, padding=1)),
    "shrinking": (IMAGE, dict(kernel_size=3)),
    "asymmetric": (IMAGE, dict(kernel_size=(5, 2), padding=(1, 0))),
    "column": (IMAGE, dict(kernel_size=(5, 1), padding=(2, 0))),
    "dilated": (IMAGE, dict(kernel_size=3, dilation=(2, 3), padding=(2, 3))),
    "same": (IMAGE, dict(kernel_size=(2, 4), padding="same", dilation=(3, 1))),
    "1x1": (IMAGE, dict(kernel_size=1)),
    "1x1_strided": (IMAGE, dict(kernel_size=1, stride=2)),
    "larger_than_image": (IMAGE, dict(kernel_size=(9, 13), padding=(3, 4))),
    "strided": (IMAGE, dict(kernel_size=3, stride=(2, 3), padding=1)),
    "strided_dilated": (
        IMAGE,
        dict(kernel_size=(3, 2), stride=(3, 2), dilation=(1, 3), padding=2),
    ),
    "grouped": (IMAGE, dict(kernel_size=3, padding=1, groups=2)),
    "reflect": (
        IMAGE,
        dict(kernel_size=(3, 5), padding=(1, 2), padding_mode="reflect"),
    ),
    "circular_same": (
        IMAGE,
        dict(kernel_size=(2, 3), padding="same", padding_mode="circular"),
    ),
    "one_pixel": ((4, 1, 1), dict(kernel_size=3, padding=1)),
    "only_padding_is_read": ((4, 1, 1), dict(kernel_size=2, padding=2, dilation=4)),
    "signal": (SIGNAL, dict(kernel_size=4, padding=1, dilation=2)),
    "volume": (VOLUME, dict(kernel_size=(2, 3, 3), padding=(1, 0, 1))),
}
KINDS = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}  # by the axes of the input


def make(name, dtype=torch.float64, channels_last=False, n=3):
    """Return ``(layer, x, g, expected)``, expected by autograd in float64."""
    size, arguments = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        layer = KINDS[len(size)](4, 6, **arguments).double()
    x = torch.randn(n, *size, generator=generator, dtype=torch.float64)
    g = torch.randn(layer(x).shape, generator=generator, dtype=torch.float64)
    x, g = x.to(dtype), g.to(dtype)
    if channels_last and x.ndim == 4:
        x, g = (z.contiguous(memory_format=torch.channels_last) for z in (x, g))
    return layer, x, g, by_autograd(layer, (x.double(), g.double()))


def by_autograd(layer, *calls, names=("weight", "bias")):
    """Return the norms of the gradients, summed over ``(x, g)`` of each call."""
    norms = []
    for i in range(len(calls[0][0])):
        value = sum((layer(x[i : i + 1]) * g[i : i + 1]).sum() for x, g in calls)
        parameters = [layer.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(value, parameters)
        norms.append(sum(gradient.square().sum() for gradient in gradients))
    return torch.stack(norms)


def by_rule(layer, *calls, names=("weight", "bias")):
    """Return the norms by the rule, from ``(x, g)`` of each call."""
    rule = RULES[type(layer)]
    factors = zip(*(rule.factors(layer, *call) for call in calls))
    return rule.squared_norm(layer, names, *(torch.cat(f, -1) for f in factors))


def assert_close(actual, expected, rtol=1e-12):
    torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_rule_equals_autograd(name, channels_last):
    layer, x, g, expected = make(name, channels_last=channels_last)
    before = x.clone(), g.clone()
    assert_close(by_rule(layer, (x, g)), expected)
    assert torch.equal(x, before[0])
    assert torch.equal(g, before[1])


@pytest.mark.parametrize("name", ["same_size", "shrinking", "grouped", "signal"])
def test_inputs_may_be_views(name):
    layer, x, g, expected = make(name)
    x = torch.stack([x, x], -1)[..., 0]  # a view without a flat axis of pixels
    assert_close(by_rule(layer, (x, g.flip(-1).flip(-1))), expected)
    constant = g[:1, :1].mean().expand(g.shape)  # a tensor whose strides are 0
    assert_close(by_rule(layer, (x, constant)), by_autograd(layer, (x, constant)))


def test_sums_are_not_rounded_to_bfloat16():
    layer = nn.Conv2d(101, 1, 3)
    x, g = torch.ones(2, 101, 5, 5).bfloat16(), torch.ones(2, 1, 3, 3).bfloat16()
    # Each of the 101 * 9 entries of the gradient is 9; bfloat16 has no 909.
    expected = torch.full([2], 101.0 * 9 * 9**2, dtype=torch.float64)
    assert_close(by_rule(layer, (x, g), names=["weight"]), expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.parametrize("groups", [1, 2])
def test_calls_on_images_of_different_sizes_add_up(groups, mode):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Conv2d(4, 6, 3, padding=1, groups=groups, padding_mode=mode)
        layer = layer.double()
        xs = [torch.randn(2, 4, *size).double() for size in ((5, 6), (1, 1), (4, 9))]
    xs[0] = xs[0].to(memory_format=torch.channels_last)
    calls = [(x, layer(x).detach().cos()) for x in xs]
    assert_close(by_rule(layer, *calls), by_autograd(layer, *calls))


@pytest.mark.parametrize("names", [("weight",), ("bias",)])
def test_a_frozen_parameter_is_excluded(names):
    layer, x, g, _ = make("same_size")
    expected = by_autograd(layer, (x, g), names=names)
    assert_close(by_rule(layer, (x, g), names=names), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_rule_on_cuda(name, channels_last):
    for dtype, rtol in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 0.02),
    ):
        layer, x, g, expected = make(name, dtype, channels_last)
        assert_close(by_rule(layer, (x.cuda(), g.cuda())).cpu(), expected, rtol)
