"""Networks, rates and an augmentation that ``bench_images.py`` compares with the defaults."""

import math

import torch
from torch import nn

from sklearn_sharpbalance import SmallResNet
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.networks._layers import PlainSequential, conv3x3, init_he
from sklearn_sharpbalance.networks.resnet import BasicBlock


class NormFirst(SmallResNet):
    """The default network with pooling after norm and ReLU, not before."""

    def __init__(self, in_channels=3, n_classes=10, width=16):
        super().__init__(in_channels, n_classes, width=width)
        for stage in self:
            if isinstance(stage, nn.Sequential):
                stage[1], stage[2], stage[3] = stage[2], stage[3], stage[1]


class PoolStage(nn.Module):
    """Convolution and pooling, then two convolutions with a shortcut."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.conv1, self.pool = conv3x3(n_in, n_out), nn.MaxPool2d(2)
        self.bn1, self.act1 = nn.BatchNorm2d(n_out), nn.ReLU()
        self.conv2, self.bn2 = conv3x3(n_out, n_out), nn.BatchNorm2d(n_out)
        self.act2 = nn.ReLU()
        self.conv3, self.bn3 = conv3x3(n_out, n_out), nn.BatchNorm2d(n_out)
        self.act3 = nn.ReLU()

    def forward(self, x):
        x = self.act1(self.bn1(self.pool(self.conv1(x))))
        return self.act3(self.bn3(self.conv3(self.act2(self.bn2(self.conv2(x))))) + x)


class PoolNet(PlainSequential):
    """Max-pooling network without strides, like that of airbench96."""

    safe_channels_last = True

    def __init__(self, in_channels=3, n_classes=10, widths=(128, 384, 512), stem=32):
        layers = [conv3x3(in_channels, stem), nn.BatchNorm2d(stem), nn.ReLU()]
        for n_in, n_out in zip((stem, *widths), widths):
            layers.append(PoolStage(n_in, n_out))
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Linear(widths[-1], n_classes))
        init_he(self)


class Shaped(PlainSequential):
    """The default network with other channels, and other blocks in each stage."""

    safe_channels_last = True

    def __init__(
        self,
        in_channels=3,
        n_classes=10,
        widths=(64, 128, 256, 512),
        blocks=(1, 1, 1),
    ):
        layers = [conv3x3(in_channels, widths[0])]
        layers += [nn.BatchNorm2d(widths[0]), nn.ReLU()]
        for n_in, n_out, n_blocks in zip(widths, widths[1:], blocks):
            layers += [conv3x3(n_in, n_out), nn.MaxPool2d(2), nn.BatchNorm2d(n_out)]
            layers += [nn.ReLU(), *(BasicBlock(n_out, n_out) for _ in range(n_blocks))]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Linear(widths[-1], n_classes))
        init_he(self)


class OtherNorms(SmallResNet):
    """The default network whose blocks start as the identity, or with another average."""

    def __init__(
        self, in_channels=3, n_classes=10, width=64, zero_gamma=False, momentum=0.1
    ):
        super().__init__(in_channels, n_classes, width=width)
        for layer in self.modules():
            if zero_gamma and isinstance(layer, BasicBlock):
                nn.init.zeros_(layer.bn2.weight)
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = momentum


def triangular(progress):
    """Rise from 0.2 to one over the first 23 %, then fall to zero, in straight lines."""
    if progress < 0.23:
        return 0.2 + 0.8 * progress / 0.23
    return max(1 - (progress - 0.23) / 0.77, 1e-4)


def early_peak(progress):
    """Rise and fall as "one_cycle", with the peak at 15 % in place of 30."""
    if progress < 0.15:
        return 0.04 + 0.48 * (1 - math.cos(math.pi * progress / 0.15))
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (progress - 0.15) / 0.85))


class CropFlip(RandomCropFlip):
    """Random crops and flips, with an erased square."""

    def __init__(self, padding=4, flip=True, mode="zeros", cutout=0):
        super().__init__(padding, flip, mode)
        self.cutout = cutout

    def draw(self, shape, device):
        own = super().draw(shape, device)
        return torch.cat([own, torch.randint(2**20, (*shape, 2), device=device)], -1)

    def apply(self, x, drawn):
        picked = super().apply(x, drawn[:, :3])
        if not self.cutout:
            return picked
        height, width = x.shape[2:]
        rows = self._hit(drawn[:, 3], height)  # (B, H)
        columns = self._hit(drawn[:, 4], width)
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        mean = picked.float().mean((0, 2, 3), keepdim=True).to(picked.dtype)
        return torch.where(inside, mean, picked)

    def _hit(self, drawn, size):
        start = drawn % (size - self.cutout + 1)
        place = torch.arange(size, device=drawn.device) - start[:, None]
        return (place >= 0) & (place < self.cutout)
