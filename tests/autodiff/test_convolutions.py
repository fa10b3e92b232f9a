"""Compare every algorithm for a convolution's gradient norms with autograd."""

import os

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.autodiff import (
    convolution_algorithms,
    convolution_rules,
    per_sample_squared_norms,
)
from sklearn_sharpbalance.autodiff.convolution_algorithms import (
    ALGORITHMS,
    Axis,
    cheapest_algorithm,
    convolution_patches,
    possible_algorithms,
)
from tests import reference
from tests.autodiff.zoo import BY_RULES, build, cross_entropy

PICTURE, SIGNAL, VOLUME = (4, 7, 10), (4, 9), (4, 3, 4, 5)

# name: (kind of layer, size of the input, arguments); from 4 to 6 channels.
CONVOLUTIONS = {
    "same_size": (nn.Conv2d, PICTURE, dict(kernel_size=3, padding=1)),
    "shrinking": (nn.Conv2d, PICTURE, dict(kernel_size=3)),
    "growing": (nn.Conv2d, PICTURE, dict(kernel_size=(2, 3), padding=(4, 5))),
    "asymmetric": (nn.Conv2d, PICTURE, dict(kernel_size=(5, 2), padding=(1, 0))),
    "row": (nn.Conv2d, PICTURE, dict(kernel_size=(1, 5), padding=(0, 2))),
    "column": (nn.Conv2d, PICTURE, dict(kernel_size=(5, 1), padding=(2, 0))),
    "even": (nn.Conv2d, PICTURE, dict(kernel_size=4, padding=2)),
    "dilated": (
        nn.Conv2d,
        PICTURE,
        dict(kernel_size=3, dilation=(2, 3), padding=(2, 3)),
    ),
    "dilated_shrinking": (nn.Conv2d, PICTURE, dict(kernel_size=3, dilation=(1, 4))),
    "same": (
        nn.Conv2d,
        PICTURE,
        dict(kernel_size=(2, 4), padding="same", dilation=(3, 1)),
    ),
    "valid": (nn.Conv2d, PICTURE, dict(kernel_size=(2, 4), padding="valid")),
    "1x1": (nn.Conv2d, PICTURE, dict(kernel_size=1)),
    "1x1_padded": (nn.Conv2d, PICTURE, dict(kernel_size=1, padding=(1, 2))),
    "1x1_strided": (nn.Conv2d, PICTURE, dict(kernel_size=1, stride=2)),
    "larger_than_picture": (
        nn.Conv2d,
        PICTURE,
        dict(kernel_size=(9, 13), padding=(3, 4)),
    ),
    "whole_picture": (nn.Conv2d, PICTURE, dict(kernel_size=(7, 10))),
    "strided": (nn.Conv2d, PICTURE, dict(kernel_size=3, stride=(2, 3), padding=1)),
    "strided_dilated": (
        nn.Conv2d,
        PICTURE,
        dict(kernel_size=(3, 2), stride=(3, 2), dilation=(1, 3), padding=2),
    ),
    "stride_over_kernel": (nn.Conv2d, PICTURE, dict(kernel_size=2, stride=4)),
    "grouped": (nn.Conv2d, PICTURE, dict(kernel_size=3, padding=1, groups=2)),
    "grouped_strided": (nn.Conv2d, PICTURE, dict(kernel_size=3, groups=2, stride=2)),
    "reflect": (
        nn.Conv2d,
        PICTURE,
        dict(kernel_size=(3, 5), padding=(1, 2), padding_mode="reflect"),
    ),
    "circular_same": (
        nn.Conv2d,
        PICTURE,
        dict(kernel_size=(2, 3), padding="same", padding_mode="circular"),
    ),
    "one_pixel": (nn.Conv2d, (4, 1, 1), dict(kernel_size=3, padding=1)),
    "only_padding_is_read": (
        nn.Conv2d,
        (4, 1, 1),
        dict(kernel_size=2, padding=2, dilation=4),
    ),
    "signal": (nn.Conv1d, SIGNAL, dict(kernel_size=4, padding=1, dilation=2)),
    "signal_strided": (nn.Conv1d, SIGNAL, dict(kernel_size=3, padding=2, stride=2)),
    "volume": (nn.Conv3d, VOLUME, dict(kernel_size=(2, 3, 3), padding=(1, 0, 1))),
    "volume_strided": (nn.Conv3d, VOLUME, dict(kernel_size=2, stride=(1, 2, 3))),
}


def make(name, dtype=torch.float64, channels_last=False, n=3):
    """Return ``(layer, x, g, expected)``, expected by autograd in float64."""
    kind, size, arguments = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        layer = kind(4, 6, **arguments).double()
    x = torch.randn(n, *size, generator=generator, dtype=torch.float64)
    g = torch.randn(layer(x).shape, generator=generator, dtype=torch.float64)
    x, g = x.to(dtype), g.to(dtype)
    if channels_last and x.ndim == 4:
        x, g = (z.contiguous(memory_format=torch.channels_last) for z in (x, g))
    return layer, x, g, _by_autograd(layer, x.double(), g.double())


def _by_autograd(layer, x, g):
    norms = []
    for i in range(len(x)):
        value = (layer(x[i : i + 1]) * g[i : i + 1]).sum()
        gradients = torch.autograd.grad(value, [layer.weight, layer.bias])
        norms.append(sum(gradient.square().sum() for gradient in gradients))
    return torch.stack(norms)


def by_rule(layer, *calls, names=("weight", "bias")):
    """Return the norms by the rule, from ``(x, g)`` of each call."""
    factors = [convolution_rules.convolution_factors(layer, *call) for call in calls]
    joined = [torch.cat(parts, -1) for parts in zip(*factors)]
    factors = factors[0] if len(calls) == 1 else joined
    return convolution_rules.convolution_squared_norm(layer, names, *factors)


@pytest.fixture(params=list(ALGORITHMS))
def algorithm(request, monkeypatch):
    """Use only this algorithm, if it is possible."""

    def choose(axes, c, q, device_type, dtype):
        possible = request.param in possible_algorithms(axes, device_type, dtype)
        return request.param if possible else "patches"

    monkeypatch.setattr(convolution_rules, "cheapest_algorithm", choose)
    return request.param


def assert_close(actual, expected, rtol=1e-12):
    torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_algorithm_equals_autograd(name, channels_last, algorithm):
    layer, x, g, expected = make(name, channels_last=channels_last)
    assert_close(by_rule(layer, (x, g)), expected)


@pytest.mark.parametrize("name", ["same_size", "shrinking", "grouped", "signal"])
def test_every_algorithm_takes_strided_inputs(name, algorithm):
    layer, x, g, expected = make(name)
    x = torch.stack([x, x], -1)[..., 0]  # a view without a flat axis of pixels
    assert_close(by_rule(layer, (x, g.flip(-1).flip(-1))), expected)
    constant = g[:1, :1].mean().expand(g.shape)  # a tensor whose strides are 0
    assert_close(by_rule(layer, (x, constant)), _by_autograd(layer, x, constant))


@pytest.mark.parametrize("name", ["same_size", "growing", "strided", "grouped"])
def test_every_algorithm_sums_bfloat16_in_float32(name, algorithm):
    layer, x, g, expected = make(name, torch.bfloat16, channels_last=True)
    actual = by_rule(layer, (x, g))
    assert actual.dtype == torch.float32
    assert_close(actual, expected, rtol=0.02)


def test_no_algorithm_rounds_its_sums_to_bfloat16(algorithm):
    layer = nn.Conv2d(101, 1, 3)
    x, g = torch.ones(2, 101, 5, 5).bfloat16(), torch.ones(2, 1, 3, 3).bfloat16()
    # Each of the 101 * 9 entries of the gradient is 9; bfloat16 has no 909.
    expected = torch.full([2], 101.0 * 9 * 9**2, dtype=torch.float64)
    assert_close(by_rule(layer, (x, g), names=["weight"]), expected, rtol=1e-6)


def test_inputs_are_not_changed(algorithm):
    layer, x, g, _ = make("same_size", channels_last=True)
    before = x.clone(), g.clone()
    by_rule(layer, (x, g))
    assert torch.equal(x, before[0])
    assert torch.equal(g, before[1])


@pytest.mark.parametrize(
    "name", [name for name in BY_RULES if "conv" in name or name == "residual"]
)
def test_every_algorithm_in_a_network(name, algorithm):
    module, X, y = build(BY_RULES[name])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    actual = per_sample_squared_norms(module, cross_entropy, X, y, method="layer_rules")
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


def test_network_in_bfloat16(algorithm):
    module, X, y = build(BY_RULES["residual"])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    module = module.float().to(memory_format=torch.channels_last)
    X = X.float().to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        actual = per_sample_squared_norms(
            module, cross_entropy, X, y, method="layer_rules"
        )
    assert_close(actual, expected, rtol=0.1)


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.parametrize("groups", [1, 2])
def test_calls_on_images_of_different_sizes_add_up(groups, mode):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Conv2d(4, 6, 3, padding=1, groups=groups, padding_mode=mode)
        layer = layer.double()
        xs = [torch.randn(2, 4, *size).double() for size in ((5, 6), (1, 1), (4, 9))]
    xs[0] = xs[0].to(memory_format=torch.channels_last)
    outputs = [layer(x) for x in xs]
    expected = [
        torch.autograd.grad(
            sum(out[i].sin().sum() for out in outputs), layer.weight, retain_graph=True
        )[0]
        .square()
        .sum()
        for i in range(2)
    ]
    calls = [(x, out.detach().cos()) for x, out in zip(xs, outputs)]
    assert_close(by_rule(layer, *calls, names=["weight"]), torch.stack(expected))


@pytest.mark.parametrize("names", [("weight",), ("bias",)])
def test_a_frozen_parameter_is_excluded(names):
    layer, x, g, both = make("same_size")
    expected = g.sum((2, 3)).square().sum(1)  # of the bias
    expected = expected if names == ("bias",) else both - expected
    assert_close(by_rule(layer, (x, g), names=names), expected)


def test_patches_of_a_1x1_kernel_are_a_view():
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 4, 5, 6).to(memory_format=layout)
        axes = [Axis(n, n, 1, range(1)) for n in (5, 6)]
        patches = convolution_patches(axes, x)
        assert torch.equal(patches, x.flatten(2))
        assert patches.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 7])
def test_covered_equals_the_naive_range(stride, offset):
    axis = Axis(n_in=6, n_out=5, stride=stride, offsets=range(-4, 8))
    expected = [t for t in range(5) if 0 <= stride * t + offset < 6]
    assert list(range(*axis.covered(offset))) == expected


def square(n, kernel=3, stride=1):
    before = (kernel - 1) // 2
    return (Axis(n, n // stride, stride, range(-before, kernel - before)),) * 2


@pytest.fixture(params=[True, False])
def kernels(request, monkeypatch):
    """Set whether Triton's kernels run on the GPU, and clear the cache."""

    def run_on(device):
        return request.param and device.type == "cuda"

    monkeypatch.setattr(convolution_algorithms, "kernels_run_on", run_on)
    cheapest_algorithm.cache_clear()
    yield request.param
    cheapest_algorithm.cache_clear()


def test_cheapest_algorithm(kernels):
    def choice(axes, c, q, device, dtype=torch.bfloat16):
        return cheapest_algorithm(axes, c, q, device, dtype)

    # Layers of a ResNet-18 for 32 x 32 images.
    large, strided = ("kernel", "kernel") if kernels else ("shifted", "patches")
    assert choice(square(32), 3, 64, "cuda") == "patches"
    assert choice(square(32), 64, 64, "cuda") == large
    assert choice(square(32), 64, 64, "cuda", torch.float64) == "shifted"
    assert choice(square(32), 64, 64, "cpu") == "patches"
    assert choice(square(32, stride=2), 64, 128, "cuda") == strided
    assert choice(square(16), 128, 128, "cuda") == large
    assert choice(square(32, kernel=1), 64, 64, "cpu") == "patches"
    for device in ("cpu", "cuda"):
        assert choice(square(8), 256, 256, device) == "pixels"
        assert choice(square(4), 512, 512, device) == "pixels"


def test_workspace_is_that_of_the_cheapest_algorithm():
    layer = nn.Conv2d(64, 64, 3, padding=1)
    patches = 2 * 32 * 32 * 64 * 9
    numbers = {}
    for device in ("cpu", "meta"):  # any device but the CPU is treated as a GPU
        output = torch.empty(2, 64, 32, 32, device=device)
        numbers[device] = convolution_rules.convolution_workspace(layer, output)
    assert numbers["meta"] < patches / 4
    assert numbers["cpu"] > patches


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def check_kernel(names=tuple(CONVOLUTIONS)):
    """Test the kernel on a GPU or in Triton's interpreter."""
    from sklearn_sharpbalance.autodiff.convolution_kernel import kernel_squared_norms

    for name in names:
        kind, _, arguments = CONVOLUTIONS[name]
        if kind is not nn.Conv2d or arguments.get("padding_mode"):
            continue
        if name in ("larger_than_picture", "whole_picture") and INTERPRETED:
            continue  # they take half of the time there
        layer, x, g, _ = make(name, torch.float32)
        factors = convolution_rules.convolution_factors(layer, x, g)
        for axes, x, g in convolution_rules._calls(layer, *factors):
            want = ALGORITHMS["patches"].squared_norms(axes, x.double(), g.double())
            assert_close(kernel_squared_norms(axes, x, g), want, rtol=1e-5)
    if len(names) < len(CONVOLUTIONS):
        return
    rng = torch.Generator().manual_seed(0)
    axes = square(5)
    x = torch.randn(2, 130, 5, 5, generator=rng).half()  # two tiles of channels
    g = torch.randn(2, 150, 5, 5, generator=rng).half()  # numpy has no bfloat16
    want = ALGORITHMS["patches"].squared_norms(axes, x.double(), g.double())
    assert_close(kernel_squared_norms(axes, x, g), want, rtol=1e-4)


@pytest.mark.slow
def test_kernel_in_the_interpreter(interpreted):
    check = "from tests.autodiff.test_convolutions import check_kernel as check"
    interpreted(check, list(CONVOLUTIONS))


@pytest.mark.gpu
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_algorithm_on_cuda(name, channels_last, algorithm):
    for dtype, rtol in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 0.02),
    ):
        layer, x, g, expected = make(name, dtype, channels_last)
        assert_close(by_rule(layer, (x.cuda(), g.cuda())).cpu(), expected, rtol)
