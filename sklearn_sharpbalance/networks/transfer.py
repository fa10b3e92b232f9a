"""Pretrained networks with a new head, or without one."""

import copy
from typing import Any

import torch
from torch import nn

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError

MOST_OF_HEAD = 8  # a head has fewer than seven eighths of the weights of a model
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def finetune(model, n_classes, *, trainable="all"):
    """Return a pretrained network with a new head of ``n_classes`` logits.

    Parameters
    ----------
    model : torch.nn.Module
        Is copied and not changed.
    n_classes : int or None
        Number of logits. None removes the head: the network then returns features, as
        for ``shared_trunk``.
    trainable : {"all", "head"}, default="all"
        What is trained: everything, or the new head only. Frozen BatchNorm layers stay
        in evaluation mode and keep the statistics of the pretraining.

    Returns
    -------
    model : torch.nn.Module
        In training mode. The head is the model's last linear layer or convolution, with
        torch's default initialisation.

    Notes
    -----
    An ensemble reinitialises all weights of a module instance for each member, the
    pretrained ones too. To keep them, pass the ensemble a factory, such as
    ``functools.partial(finetune, torchvision.models.resnet18(weights="DEFAULT"))``:
    each member gets the pretrained body and its own head.

    Examples
    --------
    >>> from sklearn_sharpbalance.networks import MLP
    >>> model = finetune(MLP(4, 3), n_classes=5, trainable="head")
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['5.weight', '5.bias']
    """
    if n_classes is not None:
        check_numbers(POSITIVE_INTEGER, n_classes=n_classes)
    check_choice("trainable", trainable, ("all", "head"))
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"model must be a torch.nn.Module, got {model!r}. Pass a pretrained one, "
            "such as torchvision.models.resnet18(weights='DEFAULT')."
        )
    model = copy.deepcopy(model)
    head = _head_name(model)
    _drop_auxiliary_heads(model)
    model.set_submodule(head, _new_head(model.get_submodule(head), n_classes))
    if trainable == "head":
        _freeze_body(model, head)
    return model.train()


def torchvision_trunk(name: str, n_values: int | None = None):
    """Return a torchvision model without head, and mean and scale of its images.

    torchvision reads the default weights, or downloads them. With ``n_values``, the
    number of values that a file has for the network, these are not read.
    """
    from torchvision import models

    if name not in models.list_models(module=models):
        raise InvalidInputError(
            f"Unknown torchvision classification model {name!r}. Choose one of "
            "torchvision.models.list_models(module=torchvision.models), or pass a "
            "module."
        )
    weights = models.get_model_weights(name).DEFAULT
    options: dict[str, Any] = {"weights": weights}
    if n_values is not None:
        if weights.meta["num_params"] > MOST_OF_HEAD * n_values:
            raise ModelFileError("it describes a larger trunk than it has weights for.")
        options = {}
        if name.startswith("vit_"):
            options["image_size"] = weights.meta["min_size"][0]
        elif name in ("googlenet", "inception_v3"):
            options |= {"transform_input": True, "init_weights": False}
    try:
        body = finetune(models.get_model(name, **options), n_classes=None)
    except OSError as error:  # urllib's, too
        raise InvalidInputError(
            f"The weights of {name!r} cannot be read or downloaded: {error}. Download "
            f"{weights.url} to {torch.hub.get_dir()}/checkpoints, or pass a module."
        ) from error
    given = weights.transforms()
    mean, scale = (torch.tensor(v).view(-1, 1, 1) for v in (given.mean, given.std))
    return body, mean, scale


def _head_name(model: nn.Module) -> str:
    """Return the name of the last linear layer or convolution."""
    names = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS)) and name
    ]
    if not names:
        raise InvalidInputError(
            f"{type(model).__name__} has no Linear layer or convolution that could be "
            "its head. Wrap it in a torch.nn.Sequential that ends in a Linear layer."
        )
    return names[-1]


def _new_head(old, n_classes: int | None) -> nn.Module:
    if n_classes is None:
        return nn.Identity()
    bias = old.bias is not None
    place = {"device": old.weight.device, "dtype": old.weight.dtype}
    if isinstance(old, nn.Linear):
        return nn.Linear(old.in_features, n_classes, bias=bias, **place)
    if n_classes % old.groups:
        raise InvalidInputError(
            f"The head is a convolution of {old.groups} groups, which do not divide "
            f"n_classes={n_classes}. Replace it by one without groups."
        )
    names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    kept = {name: getattr(old, name) for name in names}
    kind = next(kind for kind in CONVOLUTIONS if isinstance(old, kind))
    return kind(old.in_channels, n_classes, bias=bias, **kept, **place)


def _drop_auxiliary_heads(model) -> None:
    """Remove the auxiliary heads of Inception networks, which are for training only."""
    if getattr(model, "aux_logits", False):
        model.aux_logits = False
        for name in ("AuxLogits", "aux1", "aux2"):
            if hasattr(model, name):
                setattr(model, name, None)


class FrozenBatchNorm:
    """BatchNorm that stays in evaluation mode if its parent is trained."""

    def train(self, mode=True):
        return super().train(False)  # type: ignore[misc]


class FrozenBatchNorm1d(FrozenBatchNorm, nn.BatchNorm1d):
    pass


class FrozenBatchNorm2d(FrozenBatchNorm, nn.BatchNorm2d):
    pass


class FrozenBatchNorm3d(FrozenBatchNorm, nn.BatchNorm3d):
    pass


FROZEN: dict[type[nn.Module], type[nn.Module]] = {
    frozen.__bases__[1]: frozen
    for frozen in (FrozenBatchNorm1d, FrozenBatchNorm2d, FrozenBatchNorm3d)
}


def _freeze_body(model: nn.Module, head: str) -> None:
    """Freeze all layers but the head."""
    for layer in model.modules():  # a norm layer may have statistics only
        if layer is model.get_submodule(head):
            continue
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(False)
        if type(layer) in FROZEN:
            layer.__class__ = FROZEN[type(layer)]
