"""Convolutional networks for small images, without shortcuts."""

from torch import nn

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.networks._layers import PlainSequential, conv3x3, init_he


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
