"""Default augmentation of pictures."""

from typing import Any

from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.data.inputs import InputFormat
from sklearn_sharpbalance.networks import (
    VGG19BN,
    ResNet,
    ResNet18,
    SmallResNet,
    VisionTransformer,
    ViTTiny,
    WideResNet,
    default_network,
)

__all__ = ["picture_recipe"]

SIDE_OVER_PADDING = 8  # padding before a random crop, in relation to the smaller side
FLIPPED_CHANNELS = 3  # grey pictures are often of digits or letters

PICTURE_NETWORKS = (
    ResNet,
    ResNet18,
    SmallResNet,
    VGG19BN,
    VisionTransformer,
    ViTTiny,
    WideResNet,
)


def picture_recipe(
    params: dict[str, Any], nested: dict[str, Any], fmt: InputFormat
) -> dict[str, Any]:
    """Return parameters with an augmentation in place of "auto".

    Pictures of uint8 are augmented if a member is the default network for pictures or
    another one of this package, given as a class. ``SmallCNN`` is excluded, because
    augmentation makes it less accurate.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    nested : dict
        ``estimator__...`` parameters without their prefix.
    fmt : InputFormat

    Returns
    -------
    params : dict

    Examples
    --------
    >>> params = {"estimator": None, "train_transform": "auto"}
    >>> shape = (3, 32, 32)
    >>> fmt = InputFormat("pictures", shape, shape, dtype="uint8")
    >>> picture_recipe(params, {}, fmt=fmt)["train_transform"]
    RandomCropFlip(padding=4, flip=True)
    """
    transform = params["train_transform"]
    if not isinstance(transform, str) or transform != "auto":
        return params
    augmentation = _augmentation(fmt) if _applies(params, nested, fmt=fmt) else None
    return {**params, "train_transform": augmentation}


def _applies(params, nested, fmt):
    """Whether a network for pictures is trained on pictures of uint8."""
    if not fmt.is_uint8_pictures or params.get("shared_trunk") is not None:
        return False
    network = nested.get("module", params["estimator"])
    if network is None:
        network, _ = default_network(fmt.shape, n_classes=2)
    return any(network is each for each in PICTURE_NETWORKS)


def _augmentation(fmt):
    """Return random crops for pictures of one or three channels, else None."""
    n_channels, height, width = fmt.shape
    if n_channels not in (1, FLIPPED_CHANNELS):
        return None
    return RandomCropFlip(
        padding=min(height, width) // SIDE_OVER_PADDING,
        flip=n_channels == FLIPPED_CHANNELS,
    )
