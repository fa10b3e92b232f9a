"""VGG-19 with batch normalisation for small images."""

from torch import nn

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.networks._layers import conv3x3, init_he

__all__ = ["VGG19BN"]

# (convolutions, multiple of the width) of the five groups; pooling follows each.
GROUPS = ((2, 1), (2, 2), (4, 4), (4, 8), (4, 8))


class VGG19BN(nn.Module):
    """VGG-19 with batch normalisation and one linear head; returns logits.

    This is the version for CIFAR: the input of the head is the mean over the last
    feature map, which is one pixel for images of 32 x 32. Pooling rounds sizes up, so
    that smaller images are accepted. The convolutions have no bias, since the norm
    layer after them would remove it.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of a image.
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
        layers, n_in = [], in_channels
        for n_convs, multiple in GROUPS:
            n_out = multiple * width
            for _ in range(n_convs):
                layers += [conv3x3(n_in, n_out), nn.BatchNorm2d(n_out), nn.ReLU()]
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
