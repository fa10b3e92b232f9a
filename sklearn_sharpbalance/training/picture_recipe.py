"""Default augmentation, step and number of epochs for pictures."""

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
from sklearn_sharpbalance.optim import MomentumSAM
from sklearn_sharpbalance.selection.rules import selects_all
from sklearn_sharpbalance.training.net_building import names_given, resolve_sam

__all__ = ["picture_recipe"]

SIDE_OVER_PADDING = 8  # padding before a random crop, in relation to the smaller side
FLIPPED_CHANNELS = 3  # grey pictures are often of digits or letters
EPOCHS = 90  # of one pass: no more passes than SharpBalance with SAM in 50 epochs

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
    """Return parameters with the defaults for pictures in place of "auto" and None.

    They apply to pictures of uint8 if a member is the default network for pictures or
    another one of this package, given as a class. ``SmallCNN`` is excluded, because
    augmentation makes it less accurate. The step is Momentum-SAM if the user sets
    neither the optimizer nor its momentum, which this step needs. For all other data,
    and for SAM ensembles (``selection="all"``), it is SAM.

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
    >>> names = ("estimator", "sam", "optimizer", "max_epochs", "member_params")
    >>> params = dict.fromkeys(names)
    >>> params |= {"selection": "flattest", "train_transform": "auto"}
    >>> shape = (3, 32, 32)
    >>> fmt = InputFormat("images", shape, shape, dtype="uint8")
    >>> params = picture_recipe(params, {}, fmt=fmt)
    >>> params["train_transform"], params["sam"], params["max_epochs"]
    (RandomCropFlip(padding=4, flip=True), 'momentum_sam', 90)
    """
    applies = _applies(params, nested, fmt=fmt)
    chosen: dict[str, Any] = {}
    transform = params["train_transform"]
    if isinstance(transform, str) and transform == "auto":
        chosen["train_transform"] = _augmentation(fmt) if applies else None
    sam = params["sam"]
    if sam is None:
        sam = _default_step(params, nested) if applies else "sam"
        chosen["sam"] = sam
    sets_epochs = params["max_epochs"] is not None or "max_epochs" in nested
    if applies and not sets_epochs and resolve_sam(sam) is MomentumSAM:
        chosen["max_epochs"] = EPOCHS
    return params | chosen


def _applies(params, nested, fmt):
    """Whether a network for pictures is trained on pictures of uint8."""
    if not fmt.is_uint8_images or params.get("shared_trunk") is not None:
        return False
    network = nested.get("module", params["estimator"])
    if network is None:
        network, _ = default_network(fmt.shape, n_classes=2)
    return any(network is each for each in PICTURE_NETWORKS)


def _default_step(params, nested):
    """Return the name of the step for pictures."""
    own = {"optimizer", "optimizer__momentum"} & names_given(params, nested)
    if own or params["optimizer"] is not None or selects_all(params["selection"]):
        return "sam"
    return "momentum_sam"


def _augmentation(fmt):
    """Return random crops for pictures of one or three channels, else None."""
    n_channels, height, width = fmt.shape
    if n_channels not in (1, FLIPPED_CHANNELS):
        return None
    return RandomCropFlip(
        padding=min(height, width) // SIDE_OVER_PADDING,
        flip=n_channels == FLIPPED_CHANNELS,
    )
