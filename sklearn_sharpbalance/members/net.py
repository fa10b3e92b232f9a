"""Make the skorch net of the members from the user's ``estimator``."""

import inspect
import math
import warnings
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from sklearn_sharpbalance.members.member_params import own_nets
from sklearn_sharpbalance.members.module import MemberModule
from sklearn_sharpbalance.networks import default_network
from sklearn_sharpbalance.networks.defaults import SMALLEST_IMAGE
from sklearn_sharpbalance.optim import SharpnessAwareOptimizer
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = [
    "NET_DEFAULTS",
    "BoundOptimizer",
    "argument_names",
    "as_logits",
    "as_skorch_net",
    "check_names",
    "ensemble_callbacks",
    "is_sharpness_aware",
    "joined_callbacks",
    "member_net",
    "sam_passes",
    "with_callbacks",
    "with_objects",
]

# Callbacks of skorch that are replaced by the training loop of every engine.
_OWN_RECORDS = ("epoch_timer", "train_loss", "valid_loss", "valid_acc", "print_log")
# Arguments of modules that are filled in from the data.
SIZE_NAMES = {
    "n_classes": ("n_classes", "num_classes", "n_outputs", "out_features"),
    "n_features": ("n_features", "n_inputs", "in_features", "input_dim"),
    "in_channels": ("in_channels", "n_channels", "num_channels"),
}
NET_DEFAULTS = {"lr": 0.1, "batch_size": 128, "max_epochs": 50}
_SGD_DEFAULTS = {"optimizer__momentum": 0.9, "optimizer__weight_decay": 5e-4}


def as_skorch_net(estimator, input_shape, n_classes, nested=None, optimizer=None):
    """Return a new skorch net for the user's ``estimator``.

    Parameters
    ----------
    estimator : None, nn.Module class or instance, factory, or NeuralNetClassifier
    input_shape : tuple of int or None
        Shape of one sample; None if it is not an array.
    n_classes : int
    nested : dict, default=None
        ``estimator__...`` parameters, without the prefix.
    optimizer : type or None, default=None
        Optimizer of a net that is made here; None is SGD with the momentum and weight
        decay of the paper, which other optimizers do not get.

    Returns
    -------
    net : NeuralNetClassifier
    """
    nested = dict(nested or {})
    if isinstance(estimator, NeuralNetClassifier):
        net = clone(estimator)
    else:
        optimizer = nested.get("optimizer", optimizer) or torch.optim.SGD
        net = _default_net(estimator, input_shape, n_classes, optimizer)
    objects = {
        name: nested.pop(name)
        for name in ("module", "criterion")
        if isinstance(nested.get(name), nn.Module)
    }
    check_names(net, nested)
    if objects:
        net = with_objects(net, objects)
    net.set_params(**nested)
    for part, called in (("module", "network"), ("criterion", "criterion")):
        kind, given = getattr(net, part), net.get_params_for(part)
        if given and isinstance(kind, nn.Module):
            raise InvalidInputError(
                f"{part}__{next(iter(given))} is not used: the {called} is an instance "
                f"of {type(kind).__name__}. Pass its class to give it arguments."
            )
    if not isinstance(net.module, nn.Module):
        _fill_sizes(net, input_shape, n_classes)
    return net


def check_names(net, names, prefix="estimator__") -> None:
    """Raise if a net has no setting of a name; suggest a similar one.

    Examples
    --------
    >>> from sklearn_sharpbalance import MLP
    >>> check_names(NeuralNetClassifier(MLP), ["hidden"])
    Traceback (most recent call last):
    ...
    sklearn_sharpbalance.exceptions.InvalidInputError: Unknown parameter
    'estimator__hidden'. Did you mean 'estimator__module__hidden'? ...
    """
    own = [n for n in net.get_params(deep=False) if not n.startswith("_")]
    settings = [name for name in own if "__" not in name]
    prefixes = {*net.prefixes_, "module", "criterion", "optimizer"}
    for name in names:
        part, separator, _ = name.partition("__")
        if name in own or (separator and part in prefixes):
            continue
        parts = ("module", "optimizer", "criterion")
        arguments = [
            f"{p}__{a}" for p in parts for a in argument_names(getattr(net, p))
        ]
        last = {argument.rpartition("__")[2]: argument for argument in arguments}
        close = get_close_matches(name, [*settings, *last], 1)
        hint = ""
        if close:
            hint = f"Did you mean {prefix + last.get(close[0], close[0])!r}? "
        raise InvalidInputError(
            f"Unknown parameter {prefix + name!r}. {hint}Arguments of the network are "
            f"{prefix}module__..., those of the optimizer {prefix}optimizer__...; "
            f"settings of the net are {', '.join(settings)}."
        )


def with_objects(net, objects: dict[str, nn.Module]):
    """Return a copy of a net with modules as parts, which ``set_params`` cannot set."""
    return type(net)(**(net.get_params(deep=False) | objects))


def _default_net(estimator, input_shape, n_classes, optimizer):
    """Return a net with the settings of the paper; None is a default network."""
    kwargs: dict[str, Any] = {}
    if estimator is None:
        if input_shape is None:
            raise InvalidInputError(
                "estimator=None chooses a network by the shape of X, which a "
                "dictionary does not have. Pass an nn.Module class as estimator."
            )
        _warn_of_grey_images(input_shape)
        estimator, kwargs = default_network(input_shape, n_classes)
    is_module = isinstance(estimator, nn.Module) or callable(estimator)
    if not is_module or (
        isinstance(estimator, type) and not issubclass(estimator, nn.Module)
    ):
        raise InvalidInputError(
            f"estimator must be None, an nn.Module class, instance or factory, or a "
            f"skorch NeuralNetClassifier, got {estimator!r}."
        )
    lr = NET_DEFAULTS["lr"]
    of_torch = getattr(optimizer, "__module__", "").startswith("torch.optim")
    if of_torch and optimizer is not torch.optim.SGD:
        lr = inspect.signature(optimizer).parameters["lr"].default
    return NeuralNetClassifier(
        estimator,
        criterion=nn.CrossEntropyLoss,
        optimizer=optimizer,
        **(NET_DEFAULTS | {"lr": lr}),
        **(_SGD_DEFAULTS if optimizer is torch.optim.SGD else {}),
        **{f"module__{key}": value for key, value in kwargs.items()},
    )


def _warn_of_grey_images(shape):
    """Warn if samples may be grey images, which the default network flattens."""
    if len(shape) == 2 and min(shape) >= SMALLEST_IMAGE:
        warnings.warn(
            f"Samples of shape {tuple(shape)} have no channel axis: the default "
            "network flattens them, as it does with sequences. If they are grey "
            "images pass X[:, None], of shape (N, 1, H, W), for a convolutional "
            "network; otherwise pass X.reshape(len(X), -1), or a module of your own.",
            SharpBalanceWarning,
            stacklevel=2,
        )


def _fill_sizes(net, input_shape, n_classes):
    """Set the sizes that the module takes as arguments and the user did not set."""
    known = {"n_classes": n_classes}
    if input_shape is not None:
        known["n_features"] = math.prod(input_shape)  # MLPs flatten images
    if input_shape is not None and len(input_shape) == 3:
        known["in_channels"] = input_shape[0]
    try:
        accepted = inspect.signature(net.module).parameters
    except (TypeError, ValueError):
        return
    bound = net.module.keywords if isinstance(net.module, partial) else {}
    given = net.get_params_for("module") | bound
    for size, value in known.items():
        for name in SIZE_NAMES[size]:
            if name in accepted and name not in given:
                net.set_params(**{f"module__{name}": value})


def member_net(
    net, n_classes, *, statistics=None, sam, device, settings=None, callbacks=None
):
    """Prepare the net that every member is a copy of.

    Parameters
    ----------
    net : NeuralNetClassifier
        From :func:`as_skorch_net`; changed in place.
    n_classes : int
        Labels are encoded as 0 to ``n_classes - 1``.
    statistics : InputStatistics or None
        Standardisation of the input.
    sam : type
        Class of the sharpness-aware optimizer around the net's own.
    device : str
    settings : dict, default=None
        ``lr``, ``batch_size``, ``max_epochs``, ``optimizer``: None keeps the net's.
    callbacks : list or None
        More skorch callbacks for each member.
    """
    for name, value in (settings or {}).items():
        if value is not None:
            net.set_params(**{name: value})
    mean, scale, clip, pieces = statistics or (None, None, None, None)
    # Sessions compile in place: skorch's own compile would rename every weight.
    wants_compile = net.compile or None
    net.set_params(
        module=MemberModule,
        module__module=net.module,
        module__mean=mean,
        module__scale=scale,
        module__clip=clip,
        module__pieces=pieces,
        module__compile=wants_compile,
        compile=False,
        device=device,
        train_split=None,
        classes=list(range(n_classes)),
        verbose=0,
        **_wrap_optimizer(net, sam),
        **_inner_groups(net),
    )
    # Set attributes: set_params would initialise callbacks of another net, and fails if
    # callbacks are "disable".
    net.callbacks = joined_callbacks(net.callbacks, callbacks)
    for name in _OWN_RECORDS:
        setattr(net, f"callbacks__{name}", None)
    return net


def joined_callbacks(own, more):
    """Return copies of the callbacks of net and ensemble; None if there are none."""
    own = [] if own is None or own == "disable" else own
    return clone([*own, *(more or [])], safe=False) or None


def ensemble_callbacks(params):
    """Return the callbacks among the parameters of an ensemble."""
    callbacks = list(params["callbacks"] or [])
    schedule = params["lr_schedule"]
    if isinstance(schedule, LRScheduler):
        callbacks.append(("lr_schedule", schedule))
    return callbacks


def with_callbacks(net):
    """Return a copy of a net with initialised callbacks, to inspect them."""
    net = type(net)(**net.get_params(deep=False))
    with random_stream("cpu"):  # callbacks may draw
        net.initialize_callbacks()
    return net


def sam_passes(net) -> list[float]:
    """Return the passes per SAM sample in a step, for each member or once for all."""
    return [
        own.optimizer.passes_per_sample(own.get_params_for("optimizer"))
        for own in own_nets(net)
    ]


class BoundOptimizer(partial):
    """An optimizer with bound options, whose names the outer optimizer uses, too."""


def argument_names(function) -> set[str]:
    """Return the names of the arguments of a function or class."""
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def is_sharpness_aware(optimizer) -> bool:
    """Whether an optimizer is a subclass of :class:`SharpnessAwareOptimizer`."""
    return isinstance(optimizer, type) and issubclass(
        optimizer, SharpnessAwareOptimizer
    )


def _wrap_optimizer(net, sam):
    """Return settings that wrap the net's optimizer in a sharpness-aware one.

    Options that both have are bound to the net's own: RMSprop's alpha is not GSAM's.
    """
    base = net.optimizer
    if is_sharpness_aware(base):
        return {}
    both = argument_names(base) & argument_names(sam)
    given = net.get_params_for("optimizer")
    bound = {name: value for name, value in given.items() if name in both}
    for name in bound:
        delattr(net, f"optimizer__{name}")
    if bound:
        base = BoundOptimizer(base, **bound)
    return {"optimizer": sam, "optimizer__base_optimizer": base}


def _inner_groups(net):
    """Return the parameter groups with the names of weights inside a member."""
    return {
        name: [(inner, own) for given, own in groups for inner in _inside(given)]
        for name, groups in net.get_params(deep=False).items()
        if name.startswith("optimizer") and name.endswith("__param_groups")
    }


def _inside(pattern):
    if pattern.startswith("*"):
        return [pattern]
    inner = f"module.{pattern}"
    # It may be a part of the user's module, or already the name inside a member.
    return [inner, pattern] if pattern.startswith("module.") else [inner]


def as_logits(net, output: torch.Tensor) -> torch.Tensor:
    """Return logits in float32, which are logarithms for outputs of probabilities.

    skorch's convention: with the criterion ``NLLLoss`` modules return probabilities.
    """
    output = output.float()
    if isinstance(net.criterion_, torch.nn.NLLLoss):
        return output.clamp_min(torch.finfo(torch.float32).tiny).log()
    return output
