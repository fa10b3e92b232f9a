"""Networks and an augmentation that ``bench_images.py`` compares with the defaults."""

import torch
from torch import nn

from sklearn_sharpbalance import SmallResNet
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.networks._layers import PlainSequential, conv3x3, init_he


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
