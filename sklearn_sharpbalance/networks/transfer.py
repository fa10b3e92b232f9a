"""Pretrained networks with a new head; weights are read from disk only."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError

__all__ = ["finetune"]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def finetune(name_or_model, n_classes, *, weights_path=None, trainable="all"):
    """Return a pretrained network with a new head of ``n_classes`` logits.

    Nothing is downloaded: the weights are read from ``weights_path`` or from
    torchvision's cache, if the file is there.

    Parameters
    ----------
    name_or_model : str or torch.nn.Module
        Name of a torchvision classification model ("resnet18", "vit_b_16", ...), or a
        module, which is copied and not changed.
    n_classes : int
        Number of logits.
    weights_path : str or path, default=None
        File with the state dict (``torch.save`` or safetensors). None: a named model
        takes its default weights from torchvision's cache, a module keeps its own.
    trainable : {"all", "head"}, default="all"
        What is trained: everything, or the new head only. Frozen BatchNorm layers stay
        in evaluation mode and keep the statistics of the pretraining.

    Returns
    -------
    model : torch.nn.Module
        On the CPU, in training mode. The head is the model's last linear layer or
        convolution, with torch's default initialisation.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or does not fit the model. The message names
        the path.

    Notes
    -----
    An ensemble reinitialises all weights of a module instance for each member, the
    pretrained ones too. To keep them, pass the ensemble a factory,
    ``functools.partial(finetune, "resnet18")``: each member gets the pretrained body
    and its own head.

    Examples
    --------
    >>> from sklearn_sharpbalance.networks import MLP
    >>> model = finetune(MLP(4, 3), n_classes=5, trainable="head")
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['5.weight', '5.bias']
    """
    check_numbers(POSITIVE_INTEGER, n_classes=n_classes)
    check_choice("trainable", trainable, ("all", "head"))
    if isinstance(name_or_model, nn.Module):
        model = copy.deepcopy(name_or_model)
    else:
        model = _torchvision_model(name_or_model, cached=weights_path is None)
    head = _head_name(model)
    if weights_path is not None:
        _load_body(model, Path(weights_path), head)
    _drop_auxiliary_heads(model)
    model.set_submodule(head, _new_head(model.get_submodule(head), n_classes))
    if trainable == "head":
        _freeze_body(model, head)
    return model.train()


def _torchvision_model(name: str, cached: bool) -> nn.Module:
    from torchvision import models

    if name not in models.list_models(module=models):
        raise InvalidInputError(
            f"Unknown torchvision classification model {name!r}. Choose one of "
            "torchvision.models.list_models(module=torchvision.models), or pass a "
            "module."
        )
    if not cached:
        return models.get_model(name, weights=None)
    weights = models.get_model_weights(name).DEFAULT
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not path.is_file():
        raise ModelFileError(
            f"The weights of {name!r} are not on this machine and are not downloaded "
            f"automatically. Download {weights.url} to {path}, or pass weights_path."
        )
    # The file exists, so torchvision reads it and downloads nothing.
    with _reading(path):
        return models.get_model(name, weights=weights)


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


def _new_head(old, n_classes: int) -> nn.Module:
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


def _load_body(model: nn.Module, path: Path, head: str) -> None:
    """Load all weights except those of the head, which is replaced."""
    of_head = {f"{head}.weight", f"{head}.bias"}
    state = _read_state(path)
    for name in of_head & state.keys():
        del state[name]  # in place: a new dictionary would lose the layers' versions
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:  # other sizes, an unknown version
        raise ModelFileError(
            f"The weights in {path} do not fit {type(model).__name__}: {error}"
        ) from error
    missing = sorted(set(missing) - of_head)
    if missing or unexpected:
        raise ModelFileError(
            f"The weights in {path} do not fit {type(model).__name__}: missing "
            f"{missing[:3]}, unexpected {list(unexpected)[:3]}. Pass the file of the "
            "same architecture."
        )


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise ModelFileError(f"There is no file of weights at {path}.")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        with _reading(path):
            return load_file(path)
    with _reading(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ModelFileError(
            f"{path} contains a {type(state).__name__}, not a state dict. Save "
            "model.state_dict()."
        )
    return state


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise an error with the path if the block fails to read the file."""
    try:
        yield
    except Exception as error:
        raise ModelFileError(
            f"{path} cannot be read as weights ({type(error).__name__}): it is damaged "
            "or has another format. Download it again, or save model.state_dict() with "
            "torch.save."
        ) from error


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
