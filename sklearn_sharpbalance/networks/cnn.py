"""Convolutional networks for small images, without shortcuts."""

from torch import nn

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.networks._layers import (
    PlainSequential,
    conv3x3,
    init_he,
)

__all__ = ["VGG19BN", "SmallCNN"]

# (convolutions, multiple of the width) of the five groups; pooling follows each.
GROUPS = ((2, 1), (2, 2), (4, 4), (4, 8), (4, 8))


class SmallCNN(PlainSequential):
    """Three convolutions and a linear head, for images of at least 8 x 8.

    The convolutions have ``width``, ``2 width`` and ``4 width`` channels, each followed
    by ``BatchNorm2d`` and ``ReLU``. Pooling halves the image after the first two; the
    mean over the pixels is the input of the head. It returns logits. It is meant
    for fast first trials; :class:`SmallResNet` is the default for images.

    Parameters
    ----------
    in_channels : int
        Channels of an image: 1 for grey, 3 for colour.
    n_classes : int
        Number of logits.
    width : int, default=32
        Channels of the first convolution.

    Examples
    --------
    >>> import torch
    >>> SmallCNN(1, 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    safe_channels_last = True  # on a CPU, since no convolution is strided

    def __init__(self, in_channels, n_classes, width=32):
        check_numbers(
            POSITIVE_INTEGER, in_channels=in_channels, n_classes=n_classes, width=width
        )
        super().__init__(
            *_stage(in_channels, width),
            nn.MaxPool2d(2),
            *_stage(width, 2 * width),
            nn.MaxPool2d(2),
            *_stage(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, n_classes),
        )
        init_he(self)


def _stage(n_in: int, n_out: int) -> list[nn.Module]:
    return [conv3x3(n_in, n_out), nn.BatchNorm2d(n_out), nn.ReLU()]


class VGG19BN(nn.Module):
    """VGG-19 with batch normalisation and one linear head; returns logits.

    This is the version for CIFAR: the input of the head is the mean over the last
    feature map, which is one pixel for images of 32 x 32. Pooling rounds sizes up, so
    that smaller images are accepted. The convolutions have no bias, since the norm
    layer after them would remove it.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of an image.
    n_classes : int, default=10
        Number of logits.
    width : int, default=64
        Channels of the first group; the others have 2, 4, 8 and 8 times as many.

    References
    ----------
    .. [1] K. Simonyan, A. Zisserman (2015). Very deep convolutional networks for
       large-scale image recognition. ICLR.

    Examples
    --------
    >>> import torch
    >>> VGG19BN(3, 7, width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """

    safe_channels_last = True  # on a CPU, since no convolution is strided

    def __init__(self, in_channels=3, n_classes=10, width=64):
        check_numbers(
            POSITIVE_INTEGER, in_channels=in_channels, n_classes=n_classes, width=width
        )
        super().__init__()
        layers: list[nn.Module] = []
        n_in = in_channels
        for n_convs, multiple in GROUPS:
            n_out = multiple * width
            for _ in range(n_convs):
                layers += _stage(n_in, n_out)
                n_in = n_out
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(n_in, n_classes)
        init_he(self)

    def forward(self, x):
        """Return logits (N, n_classes) of images ``x`` (N, in_channels, H, W)."""
        return self.head(self.flatten(self.pool(self.features(x))))
