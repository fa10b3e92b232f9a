"""The default network for samples of a given shape."""

import math
from collections.abc import Sequence

from torch import nn

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks.mlp import MLP
from sklearn_sharpbalance.networks.resnet import SmallResNet

SMALLEST_IMAGE = 8


def default_network(
    input_shape: Sequence[int], n_classes: int
) -> tuple[type[nn.Module], dict[str, int]]:
    """Return the class and the arguments of a network for samples of one shape.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of one sample, without the axis of samples.
    n_classes : int
        Number of logits.

    Returns
    -------
    module : type
        :class:`MLP` or :class:`SmallResNet`.
    kwargs : dict
        Its arguments.

    Notes
    -----
    ============================  =========================================
    ``input_shape``               network
    ============================  =========================================
    ``(F,)``                      ``MLP`` on the F features
    ``(C, H, W)``, H and W >= 8   ``SmallResNet``
    anything else                 ``MLP`` on the flattened sample
    ============================  =========================================

    Images have channels first. A sequence ``(T, F)`` is flattened, so all sequences
    must have one length. :class:`SmallCNN` takes about half of the time of
    ``SmallResNet``; :class:`ResNet18` is larger and slower. All take ``in_channels``,
    ``n_classes`` and ``width``.

    Examples
    --------
    >>> default_network((64,), 10)
    (<class '...MLP'>, {'n_features': 64, 'n_classes': 10})
    >>> default_network((3, 32, 32), 10)
    (<class '...SmallResNet'>, {'in_channels': 3, 'n_classes': 10})
    """
    shape = tuple(int(size) for size in input_shape)
    if not shape or min(shape) < 1:
        raise InvalidInputError(
            f"input_shape must contain the sizes of one sample's axes, each at least "
            f"1, got {shape}."
        )
    check_numbers(POSITIVE_INTEGER, n_classes=n_classes)
    if len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE:
        return SmallResNet, {"in_channels": shape[0], "n_classes": n_classes}
    return MLP, {"n_features": math.prod(shape), "n_classes": n_classes}
