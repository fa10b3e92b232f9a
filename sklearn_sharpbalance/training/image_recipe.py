"""Default augmentation, step, network and schedule for images of uint8."""

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.data.inputs import InputFormat, as_array
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.networks import (
    ResNet,
    ResNet18,
    SmallResNet,
    WideResNet,
    default_network,
)
from sklearn_sharpbalance.optim import MomentumSAM
from sklearn_sharpbalance.selection.rules import selects_all
from sklearn_sharpbalance.training.net_building import resolve_sam


class Size(NamedTuple):
    """Settings for fits of fewer than ``below`` images."""

    below: float
    width: int  # of the default network
    batch_size: int
    weight_decay: float
    rho: float  # of Momentum-SAM
    warp: float  # of half of the images


SIDE_OVER_PADDING = 8  # padding before a random crop, in relation to the smaller side
FLIPPED_CHANNELS = 3  # grey images are often of digits or letters

# Chosen on validation images: see ``PLANS`` of ``bench_images.py``.
SIZES = (
    Size(5_000, width=16, batch_size=64, weight_decay=2e-3, rho=0.3, warp=0.1),
    Size(20_000, width=32, batch_size=128, weight_decay=1e-3, rho=0.5, warp=0.1),
    Size(math.inf, width=64, batch_size=512, weight_decay=1e-3, rho=1.0, warp=0.2),
)
FIRST = 100  # images whose values are looked at
RATE = 0.4  # for 512 images in a batch; proportional to the square root
EPOCHS = (30, 90)  # "40 epochs" gain half a point for a third more time
PASSED_IMAGES = 60_000  # more epochs for fewer than 2,000 images
PASSED_GREY = 30_000  # digits and letters are as accurate with half as many
OPTIONS = {
    "optimizer__nesterov": True,
    "criterion__label_smoothing": 0.05,  # "smoothing 0.1": same accuracy, higher NLL
}

RECIPE = {*OPTIONS, "optimizer__weight_decay", "module__width"}

CONVOLUTIONAL = (ResNet, ResNet18, SmallResNet, WideResNet)


def image_recipe(
    params: dict[str, Any], nested: dict[str, Any], fmt: InputFormat, n_images: int
) -> dict[str, Any]:
    """Return parameters with the augmentation and the step for images of uint8.

    They apply to networks of this package, but not to ``SmallCNN``, which augmentation
    makes less accurate. The step is Momentum-SAM if the optimizer is SGD with a
    momentum, which this step needs; for SAM ensembles (``selection="all"``) it is SAM.
    Other data keep None. ``nested`` are ``estimator__...`` parameters
    without their prefix; ``n_images`` is 0 if it is not known.
    """
    applies = _network(params, nested, fmt) in CONVOLUTIONAL
    applies = applies and params.get("shared_trunk") is None
    chosen: dict[str, Any] = {}
    transform = params["train_transform"]
    if isinstance(transform, str) and transform == "auto":
        chosen["train_transform"] = _augmentation(fmt, n_images) if applies else None
    sam = params["sam"]
    if applies and sam is None:
        sam = chosen["sam"] = _default_step(params, nested)
    if applies and params["rho"] is None and resolve_sam(sam) is MomentumSAM:
        chosen["rho"] = size_for(n_images).rho
    return params | chosen


def _augmentation(fmt, n_images):
    """Return random crops and warps for images of one or three channels, else None."""
    n_channels, height, width = fmt.shape
    if n_channels not in (1, FLIPPED_CHANNELS):
        return None
    return RandomCropFlip(
        padding=min(height, width) // SIDE_OVER_PADDING,
        flip=n_channels == FLIPPED_CHANNELS,
        mode="reflect",
        warp=size_for(n_images).warp,
    )


def image_schedule(
    params: dict[str, Any],
    nested: dict[str, Any],
    fmt: InputFormat,
    n_images: int,
    fitted: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return parameters with the width, batch size and schedule for images of uint8.

    Every setting that the user gives is kept. Later calls of ``partial_fit`` keep those
    of the ``fitted`` net.
    """
    network = _network(params, nested, fmt)
    if network is None:
        return params, nested
    if fitted is None:
        chosen, options = _schedule(params, nested, network, fmt, n_images)
    else:
        chosen = {name: getattr(fitted, name) for name in ("lr", "batch_size")}
        options = {name: getattr(fitted, name) for name in RECIPE & vars(fitted).keys()}
    free = {name for name, value in params.items() if value is None}
    free -= {name.removeprefix("optimizer__") for name in nested}
    chosen = {name: value for name, value in chosen.items() if name in free}
    return params | chosen, options | nested


def _schedule(params, nested, network, fmt, n_images):
    """Return width, batch size and schedule, and the options of net and optimizer.

    Rate and options of the optimizer apply to convolutional networks of this package,
    if the optimizer is SGD. The rate is that of the batch size in force.
    """
    size, (least, most) = size_for(n_images), EPOCHS
    passed = PASSED_GREY if fmt.shape[0] == 1 else PASSED_IMAGES
    chosen: dict[str, Any] = {
        "batch_size": size.batch_size,
        "lr_schedule": "one_cycle",
        "max_epochs": min(max(least, round(passed / n_images)), most),
    }
    options = {}
    if network in CONVOLUTIONAL and _has_sgd(params, nested):
        given = nested.get("batch_size", params["batch_size"])
        batch_size = size.batch_size if given is None else given
        chosen["lr"] = RATE * math.sqrt(batch_size / 512)
        options = _options(params, nested, size)
    if params["estimator"] is None and "module" not in nested:
        options["module__width"] = size.width
    return chosen, options


def size_for(n_images: int) -> Size:
    """Return the settings that follow the number of images."""
    return next(size for size in SIZES if n_images < size.below)


def _options(params, nested, size):
    """Return options of optimizer and criterion that agree with those of the user."""
    options = OPTIONS | {"optimizer__weight_decay": size.weight_decay}
    if not _has_momentum(params, nested) or "optimizer__dampening" in nested:
        del options["optimizer__nesterov"]
    if nested.get("criterion", nn.CrossEntropyLoss) is not nn.CrossEntropyLoss:
        del options["criterion__label_smoothing"]
    return options


def _has_sgd(params, nested):
    return nested.get("optimizer", params["optimizer"]) in (None, torch.optim.SGD)


def _has_momentum(params, nested):
    """Whether all members surely have a momentum, without dampening."""
    of_members = {name for each in params["member_params"] or [] for name in each}
    sets_own = {"optimizer__momentum", "optimizer__dampening"} & of_members
    return not sets_own and bool(nested.get("optimizer__momentum", True))


def _network(params, nested, fmt):
    """Return the class or function of the members' network.

    None if it is configured by the user, or if the samples are no images for it.
    """
    network = nested.get("module", params["estimator"])
    if isinstance(params["estimator"], NeuralNetClassifier) or not fmt.is_uint8_images:
        return None
    if network is None:
        network, _ = default_network(fmt.shape, n_classes=2)
        return network if network is SmallResNet else None
    while isinstance(network, partial):
        network = network.func
    return type(network) if isinstance(network, nn.Module) else network


def _default_step(params, nested):
    """Return the name of the step for images."""
    applies = _has_sgd(params, nested) and _has_momentum(params, nested)
    is_momentum_sam = applies and not selects_all(params["selection"])
    return "momentum_sam" if is_momentum_sam else "sam"


def warn_of_float_images(
    params: dict[str, Any], nested: dict[str, Any], fmt: InputFormat, X: Any
) -> None:
    """Warn if images of uint8 would get other defaults than these of float."""
    if (
        fmt.is_uint8_images
        or params["train_transform"] != "auto"
        or params.get("shared_trunk") is not None
        or _network(params, nested, replace(fmt, dtype="uint8")) is None
    ):
        return
    first = as_array(X[0][0]) if isinstance(X, Dataset) else X[:FIRST]
    if first.min() >= 0 and 0 < first.max() <= 255:
        warnings.warn(
            "X is images of float. Batch size, schedule and, for networks of this "
            "package, augmentation and step are chosen for images of uint8 only. If "
            "the images have 8 bits per channel, pass them as uint8, such as "
            "(255 * X).round().astype(np.uint8) for values from 0 to 1; if not, set "
            "train_transform=None to silence this warning.",
            SharpBalanceWarning,
            stacklevel=2,
        )
