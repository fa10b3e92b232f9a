"""Residual networks for small images, with a 3x3 stem that does not pool."""

from torch import nn

from sklearn_sharpbalance._validation import (
    FROM_0_BELOW_1,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks._layers import (
    PlainSequential,
    conv1x1,
    conv3x3,
    init_he,
)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions F and a shortcut, ``relu(F(x) + shortcut(x))``."""

    def __init__(self, n_in, n_out, stride=1):
        super().__init__()
        self.conv1 = conv3x3(n_in, n_out, stride)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu1 = nn.ReLU()
        self.conv2 = conv3x3(n_out, n_out)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and n_in == n_out
            else nn.Sequential(conv1x1(n_in, n_out, stride), nn.BatchNorm2d(n_out))
        )
        self.relu2 = nn.ReLU()

    def forward(self, x):
        """(N, n_in, H, W) -> (N, n_out, H / stride, W / stride)."""
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.shortcut(x))


class ResNet(nn.Module):
    """Residual network of basic blocks for small images; returns logits.

    Parameters
    ----------
    blocks : sequence of int, default=(2, 2, 2, 2)
        Blocks per stage. Stage ``i`` has ``2**i * width`` channels, and every stage but
        the first halves the image. (3, 4, 6, 3) is ResNet-34.
    in_channels : int, default=3
        Channels of an image.
    n_classes : int, default=10
        Number of logits.
    width : int, default=64
        Channels of the stem and of the first stage.

    References
    ----------
    .. [1] K. He, X. Zhang, S. Ren, J. Sun (2016). Deep residual learning for image
       recognition. CVPR.

    Examples
    --------
    >>> import torch
    >>> ResNet((1, 1), n_classes=5, width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """

    def __init__(self, blocks=(2, 2, 2, 2), in_channels=3, n_classes=10, width=64):
        check_numbers(
            POSITIVE_INTEGER, in_channels=in_channels, n_classes=n_classes, width=width
        )
        if not hasattr(blocks, "__len__") or len(blocks) == 0:
            raise InvalidInputError(
                f"blocks must have at least one stage, got {blocks!r}. Pass the "
                "number of blocks of each stage, such as (2, 2, 2, 2)."
            )
        for i, n_blocks in enumerate(blocks):
            check_numbers(POSITIVE_INTEGER, **{f"blocks[{i}]": n_blocks})
        super().__init__()
        self.stem = nn.Sequential(
            conv3x3(in_channels, width), nn.BatchNorm2d(width), nn.ReLU()
        )
        widths = [width * 2**i for i in range(len(blocks))]
        stages = [_stage(width, width, blocks[0], stride=1)]
        for n_in, n_out, n_blocks in zip(widths, widths[1:], blocks[1:]):
            stages.append(_stage(n_in, n_out, n_blocks, stride=2))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(widths[-1], n_classes)
        init_he(self)

    def forward(self, x):
        """Return logits (N, n_classes) of images ``x`` (N, in_channels, H, W)."""
        return self.head(self.flatten(self.pool(self.stages(self.stem(x)))))


def _stage(n_in: int, n_out: int, n_blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(n_in, n_out, stride)
    return nn.Sequential(
        first, *(BasicBlock(n_out, n_out) for _ in range(n_blocks - 1))
    )


class ResNet18(ResNet):
    """ResNet-18 for small images (CIFAR): 11,173,962 weights for 10 classes.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of an image.
    n_classes : int, default=10
        Number of logits.
    width : int, default=64
        Channels of the first of four stages; the others have 2, 4 and 8 times as many.

    Examples
    --------
    >>> sum(p.numel() for p in ResNet18().parameters())
    11173962
    """

    def __init__(self, in_channels=3, n_classes=10, width=64):
        super().__init__(
            (2, 2, 2, 2), in_channels=in_channels, n_classes=n_classes, width=width
        )


class SmallResNet(PlainSequential):
    """Small residual network, the default for images of at least 8 x 8.

    A convolution with ``width`` channels and three stages, which halve the image and
    double the channels: a convolution, pooling and a basic block. The mean over the
    pixels is the input of a linear head. It returns logits.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of an image.
    n_classes : int, default=10
        Number of logits.
    width : int, default=16
        Channels of the first convolution; the last stage has 8 times as many.

    Examples
    --------
    >>> import torch
    >>> SmallResNet(1, 5)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 5])
    """

    safe_channels_last = True  # on a CPU, since no convolution is strided

    def __init__(self, in_channels=3, n_classes=10, width=16):
        check_numbers(
            POSITIVE_INTEGER, in_channels=in_channels, n_classes=n_classes, width=width
        )
        super().__init__(
            conv3x3(in_channels, width),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            _pooled_stage(width),
            _pooled_stage(2 * width),
            _pooled_stage(4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, n_classes),
        )
        init_he(self)


def _pooled_stage(n_in: int) -> nn.Sequential:
    return nn.Sequential(
        conv3x3(n_in, 2 * n_in),
        nn.MaxPool2d(2),  # before the norm: a quarter of the pixels to normalise
        nn.BatchNorm2d(2 * n_in),
        nn.ReLU(),
        BasicBlock(2 * n_in, 2 * n_in),
    )


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after norm and ReLU, and a shortcut.

    The shortcut is the input, or a 1x1 convolution of the activated input if the
    shapes differ.
    """

    def __init__(self, n_in, n_out, stride, dropout):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(n_in)
        self.relu1 = nn.ReLU()
        self.conv1 = conv3x3(n_in, n_out, stride)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu2 = nn.ReLU()
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.conv2 = conv3x3(n_out, n_out)
        same = stride == 1 and n_in == n_out
        self.shortcut = None if same else conv1x1(n_in, n_out, stride)

    def forward(self, x):
        """(N, n_in, H, W) -> (N, n_out, H / stride, W / stride)."""
        active = self.relu1(self.bn1(x))
        out = self.dropout(self.relu2(self.bn2(self.conv1(active))))
        side = x if self.shortcut is None else self.shortcut(active)
        return self.conv2(out) + side


class WideResNet(nn.Module):
    """Wide residual network (WRN) for small images; returns logits.

    It has three groups of ``(depth - 4) / 6`` blocks with 16, 32 and 64 times
    ``widen_factor`` channels; the second and the third group halve the image.

    Parameters
    ----------
    depth : int, default=40
        Number of convolutions and linear layers; ``6 n + 4``.
    widen_factor : int, default=2
        Factor of the number of channels.
    in_channels : int, default=3
        Channels of an image.
    n_classes : int, default=10
        Number of logits.
    dropout : float, default=0.0
        Dropout between the two convolutions of a block.

    References
    ----------
    .. [1] S. Zagoruyko, N. Komodakis (2016). Wide residual networks. BMVC.

    Examples
    --------
    >>> sum(p.numel() for p in WideResNet(40, 2).parameters())
    2243546
    """

    def __init__(
        self, depth=40, widen_factor=2, in_channels=3, n_classes=10, dropout=0.0
    ):
        check_numbers(
            POSITIVE_INTEGER,
            depth=depth,
            widen_factor=widen_factor,
            in_channels=in_channels,
            n_classes=n_classes,
        )
        check_numbers(FROM_0_BELOW_1, dropout=dropout)
        if depth < 10 or (depth - 4) % 6:
            raise InvalidInputError(
                "depth must be 6 n + 4 with n of at least 1 (10, 16, ..., 28, ..., "
                f"40), got {depth}."
            )
        super().__init__()
        widths = [16, *(w * widen_factor for w in (16, 32, 64))]
        self.stem = conv3x3(in_channels, widths[0])
        self.groups = nn.Sequential()
        for n_in, n_out, stride in zip(widths, widths[1:], (1, 2, 2)):
            blocks = [PreActivationBlock(n_in, n_out, stride, dropout)]
            for _ in range((depth - 4) // 6 - 1):
                blocks.append(PreActivationBlock(n_out, n_out, 1, dropout))
            self.groups.append(nn.Sequential(*blocks))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(widths[-1], n_classes)
        init_he(self)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        """Return logits (N, n_classes) of images ``x`` (N, in_channels, H, W)."""
        features = self.relu(self.bn(self.groups(self.stem(x))))
        return self.head(self.flatten(self.pool(features)))
