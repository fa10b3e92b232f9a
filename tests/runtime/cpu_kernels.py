"""Train every built-in network on a CPU at odd sizes and in all layouts.

Run it in its own process, since a faulty kernel may end the process:

    python tests/runtime/cpu_kernels.py [--short]

Gradients are compared with those of PyTorch's own kernels (oneDNN switched off).
"""

import itertools
import sys
import zlib

import torch
from torch import nn

from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.networks import (
    MLP,
    ResNet18,
    SmallCNN,
    SmallResNet,
    WideResNet,
)

SIDE = 32  # of pictures in pixels
NETWORKS = {
    "MLP": lambda c, w: MLP(c * SIDE**2, 3, hidden=(w, w)),
    "SmallCNN": lambda c, w: SmallCNN(c, 3, width=w),
    "SmallResNet": lambda c, w: SmallResNet(c, 3, width=w),
    "ResNet18": lambda c, w: ResNet18(c, 3, width=w),
    "WideResNet": lambda c, w: WideResNet(10, 1, c, 3),
}
CHANNELS_LAST = ("SmallCNN", "SmallResNet")  # by themselves
# Channels of the pictures, width of the network, size of the batch.
SIZES = ((1, 3, 17), (3, 4, 5), (3, 7, 17))
LAYOUTS = ("contiguous", "channels_last input", "channels_last weights")


def check_gradients(name, channels, width, batch, layout):
    """Raise if the gradients differ from those in float64."""
    seed = zlib.crc32(repr((name, channels, width, batch)).encode())
    torch.manual_seed(seed)
    x = torch.randint(0, 256, (batch, SIDE, SIDE, channels), dtype=torch.uint8)
    x, y = x.permute(0, 3, 1, 2), torch.arange(batch) % 3  # channels last in memory
    if layout == "contiguous":
        x = x.clone(memory_format=torch.contiguous_format)
    inner = NETWORKS[name](channels, width)
    if layout == "channels_last weights":
        inner = inner.to(memory_format=torch.channels_last)
    module = MemberModule(lambda: inner, torch.tensor(127.0), torch.tensor(64.0))
    module.eval()  # batch statistics of few pictures would increase rounding errors
    found = gradients(module, x, y)
    # oneDNN has no float64. PyTorch's own kernels in float32 round enough to change the
    # sign of some inputs of ReLU, and so some gradients by 1 %.
    expected = gradients(module.double(), x, y)
    scale = torch.stack([g.norm() for g in expected.values()]).max()
    for weight, gradient in expected.items():
        error = (found[weight] - gradient).norm() / (gradient.norm() + 1e-3 * scale)
        if not error < 5e-3:
            raise AssertionError(
                f"{name}, {channels} channels, width {width}, batch {batch}, {layout}: "
                f"the gradient of {weight} is wrong by {error:.1e} of its norm"
            )


def gradients(module, x, y):
    module.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    return {name: w.grad.clone() for name, w in module.named_parameters()}


def main(short):
    """``short``: the largest odd size, and few layouts."""
    sizes = SIZES[-1:] if short else SIZES
    for name in NETWORKS:
        layouts = LAYOUTS if not short or name in CHANNELS_LAST else LAYOUTS[1:2]
        for (channels, width, batch), layout in itertools.product(sizes, layouts):
            check_gradients(name, channels, width, batch, layout)
    print("no difference found")


if __name__ == "__main__":
    main(short="--short" in sys.argv)
