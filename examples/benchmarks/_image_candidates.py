"""Networks and augmentations that ``bench_images.py`` compares with the defaults."""

import torch
from torch import nn

from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.networks._layers import PlainSequential, conv3x3, init_he

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class PoolStage(nn.Module):
    """Convolution, pooling, norm; then one or two convolutions with a shortcut."""

    def __init__(self, n_in, n_out, n_convs, activation, momentum, residual=False):
        super().__init__()
        self.residual = residual
        self.conv1, self.pool = conv3x3(n_in, n_out), nn.MaxPool2d(2)
        self.bn1, self.act1 = nn.BatchNorm2d(n_out, momentum=momentum), activation()
        self.conv2 = conv3x3(n_out, n_out)
        self.bn2, self.act2 = nn.BatchNorm2d(n_out, momentum=momentum), activation()
        self.conv3 = conv3x3(n_out, n_out) if n_convs == 3 else None
        if self.conv3 is not None:
            self.bn3, self.act3 = nn.BatchNorm2d(n_out, momentum=momentum), activation()

    def forward(self, x):
        x = self.act1(self.bn1(self.pool(self.conv1(x))))
        if self.residual:
            return self.act2(self.bn2(self.conv2(x)) + x)
        out = self.act2(self.bn2(self.conv2(x)))
        if self.conv3 is None:
            return out
        return self.act3(self.bn3(self.conv3(out)) + x)


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class PoolNet(PlainSequential):
    """Max-pooling network without strides, like that of airbench.

    ``stem`` is the width of a 3x3 convolution, or "whiten" for a fixed 2x2 convolution
    with the filters ``whitening``.
    """

    safe_channels_last = True

    def __init__(
        self,
        in_channels=3,
        n_classes=10,
        widths=(128, 384, 512),
        stem=32,
        whitening=None,
        n_convs=3,
        activation="relu",
        stem_activation=None,
        dirac=False,
        head_scale=1.0,
        head="mean",
        momentum=0.1,
        residual=False,
    ):
        kind = ACTIVATIONS[activation]
        if stem == "whiten":
            first = nn.Conv2d(in_channels, len(whitening), 2)
            n_stem = len(whitening)
            layers = [first, ACTIVATIONS[stem_activation or activation]()]
        else:
            n_stem = stem
            norm = nn.BatchNorm2d(stem, momentum=momentum)
            layers = [conv3x3(in_channels, stem), norm, kind()]
        for n_in, n_out in zip((n_stem, *widths), widths):
            layers.append(PoolStage(n_in, n_out, n_convs, kind, momentum, residual))
        pool = {"mean": nn.AdaptiveAvgPool2d, "max": nn.AdaptiveMaxPool2d}[head]
        linear = nn.Linear(widths[-1], n_classes)
        layers += [pool(1), nn.Flatten(), linear]
        if head_scale != 1:
            layers.append(Scale(head_scale))
        super().__init__(*layers)
        init_he(self)
        if dirac:
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                    layer.reset_parameters()
                    nn.init.dirac_(layer.weight.data[: layer.in_channels])
        if stem == "whiten":
            first.weight.data[:] = whitening
            first.weight.requires_grad_(False)


def whitening_filters(X, size=2, eps=5e-4, n=5000):
    """Return filters (2 k, C, size, size) that whiten patches of uint8 images.

    Both signs of each filter are there, as in airbench.
    """
    x = torch.from_numpy(X[:n]).float().permute(0, 3, 1, 2)
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    patches = x.unfold(2, size, 1).unfold(3, size, 1)  # (N, C, H, W, s, s)
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    flat = patches.flatten(1).double()
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    scaled = vectors.T / (values + eps).sqrt()[:, None]
    filters = scaled.reshape(-1, *patches.shape[1:]).flip(0).float()
    return torch.cat([filters, -filters])


class CropFlip(RandomCropFlip):
    """Random crops of images padded by reflection, flips, and an erased square."""

    def __init__(self, padding=4, flip=True, mode="constant", cutout=0):
        super().__init__(padding, flip)
        self.mode, self.cutout = mode, cutout

    def draw(self, shape, device):
        own = super().draw(shape, device)
        if not self.cutout:
            return own
        return torch.cat([own, torch.randint(2**20, (*shape, 2), device=device)], -1)

    def apply(self, x, drawn):
        p = self.padding
        n, _, height, width = x.shape
        device = x.device
        if self.mode != "constant":
            x = nn.functional.pad(x.float(), (p, p, p, p), mode=self.mode).to(x.dtype)
        else:
            x = nn.functional.pad(x, (p, p, p, p))
        top, left, mirror = drawn[:, :3, None].unbind(1)
        rows = top + torch.arange(height, device=device)
        column = torch.arange(width, device=device)
        columns = left + torch.where(mirror > 0, width - 1 - column, column)
        sample = torch.arange(n, device=device)[:, None, None]
        picked = x.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None]]
        picked = picked.permute(0, 3, 1, 2)
        if self.cutout:
            inside = torch.ones(n, 1, height, width, dtype=torch.bool, device=device)
            for axis, size in ((2, height), (3, width)):
                start = drawn[:, axis + 1] % (size - self.cutout + 1)
                place = torch.arange(size, device=device) - start[:, None]
                hit = (place >= 0) & (place < self.cutout)
                shape = (n, 1, size, 1) if axis == 2 else (n, 1, 1, size)
                inside = inside & hit.reshape(shape)
            mean = picked.float().mean((0, 2, 3), keepdim=True).to(picked.dtype)
            picked = torch.where(inside, mean, picked)
        return picked
