"""Wide residual networks of pre-activation blocks."""

from torch import nn

from sklearn_sharpbalance._validation import (
    FROM_0_BELOW_1,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks._layers import conv1x1, conv3x3, init_he

__all__ = ["WideResNet"]


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
        Channels of a image.
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
