"""The net of all members: built from the user's ``estimator``, and checked."""

import inspect
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from skorch.callbacks import LRScheduler, ParamMapper
from skorch.dataset import Dataset, ValidSplit
from torch import nn
from torch.utils.data import DataLoader

from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.data.input_statistics import (
    InputStatistics,
    input_statistics,
    n_pieces,
)
from sklearn_sharpbalance.engine.support import base_optimizer, check_overrides
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.members.net import (
    argument_names,
    ensemble_callbacks,
    is_sharpness_aware,
    with_callbacks,
)
from sklearn_sharpbalance.members.schedules import LR_SCHEDULES
from sklearn_sharpbalance.members.state import MemberState, restore
from sklearn_sharpbalance.optim import OPTIMIZERS, SAM
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream

# Settings of the net that are shown if it has them.
OPTIONS_SHOWN = ("module__width", "criterion__label_smoothing", "optimizer__nesterov")
OF_BATCHES = "the ensemble assigns samples to batches itself."
OF_WEIGHTS = f"{OF_BATCHES} Pass sample_weight to fit, or class_weight."
OF_ITEMS = (
    "shapes, labels, statistics and scores are computed from single items. Let the "
    "Dataset return samples as the module takes them, and pass augmentation as "
    "train_transform."
)
# Settings of a net that are not used, their default, and what to do instead.
UNUSED: dict[str, tuple[Any, str]] = {
    "iterator_train": (DataLoader, f"{OF_BATCHES} Remove it."),
    "iterator_valid": (DataLoader, f"{OF_BATCHES} Remove it."),
    "iterator_train__sampler": (None, OF_WEIGHTS),
    "iterator_train__batch_sampler": (None, OF_WEIGHTS),
    "iterator_train__collate_fn": (None, OF_ITEMS),
    "iterator_valid__collate_fn": (None, OF_ITEMS),
    "iterator_train__drop_last": (
        False,
        "every epoch uses every sample, in batches of equal size. Remove it.",
    ),
    "dataset": (Dataset, f"{OF_BATCHES} Pass an instance of a torch Dataset as X."),
    "train_split": (
        None,
        "the ensemble holds samples out itself. Pass validation_fraction to it.",
    ),
    "predict_nonlinearity": (
        None,
        "members are combined by their logits. Move it into the module, or pass a "
        "function as aggregation.",
    ),
}


def build_net(params, nested, fmt, data, n_classes, seed=0):
    """Return the net that every member is a copy of.

    ``nested`` are ``estimator__...`` parameters without their prefix. The statistics of
    the input are those of ``data``; random items of a Dataset are drawn by ``seed``.
    """
    statistics = None
    if params["standardize"]:
        encode = params["estimator"] is None and n_pieces(fmt, len(data)) > 0
        with random_stream(seed=seed):
            statistics = input_statistics(data, fmt, encode=encode)
    shape = _module_shape(fmt, statistics)
    net = _users_net(params, nested, shape=shape, n_classes=n_classes)
    return _members_net(net, params, n_classes, statistics=statistics)


def renewed_net(fitted, params, nested, fmt, n_classes):
    """Return the net for the current parameters, with the fitted statistics."""
    statistics = None
    if fitted.module__mean is not None:
        statistics = InputStatistics(
            fitted.module__mean,
            fitted.module__scale,
            clip=fitted.module__clip,
            pieces=fitted.module__pieces,
        )
    shape = _module_shape(fmt, statistics)
    net = _users_net(params, nested, shape=shape, n_classes=n_classes)
    return _members_net(net, params, n_classes, statistics=statistics)


def _module_shape(fmt, statistics):
    """Return the shape of a standardised sample."""
    if statistics is None or statistics.pieces is None:
        return fmt.shape
    return (fmt.shape[0] + statistics.pieces.shape[1],)


def _users_net(params, nested, shape, n_classes):
    """Return the user's estimator as a skorch net; raise if members cannot use it."""
    net = as_skorch_net(
        params["estimator"],
        shape,
        n_classes,
        nested=nested,
        optimizer=params["optimizer"],
    )
    check_overrides(net)
    check_net_settings(net, params)
    return net


def _members_net(net, params, n_classes, statistics):
    net = member_net(
        net,
        n_classes,
        statistics=statistics,
        sam=resolve_sam(params["sam"]),
        device=resolve_devices(params["device"])[0],
        settings={
            k: params[k] for k in ("lr", "batch_size", "max_epochs", "optimizer")
        },
        callbacks=ensemble_callbacks(params),
    )
    check_callbacks(net, has_valid=params["validation_fraction"] is not None)
    return net


def base_rate(net) -> float:
    """Return the learning rate of members without a setting of their own."""
    return net.get_params_for("optimizer").get("lr", net.lr)


def renewed_member(net, member: MemberState) -> MemberState:
    """Return a member with the net's learning rate and its own momentum."""
    fresh = restore(net, replace(member, optimizer=None)).optimizer_.param_groups
    state = member.optimizer
    assert state is not None  # the member has been trained
    groups = [
        {**group, "lr": new["lr"], "initial_lr": new["lr"]}
        for group, new in zip(state["param_groups"], fresh)
    ]
    return replace(member, optimizer={**state, "param_groups": groups})


def resolve_sam(sam):
    """Return the class of the sharpness-aware optimizer; None is SAM."""
    if sam is None:
        return SAM
    if isinstance(sam, str) and sam in OPTIMIZERS:
        return OPTIMIZERS[sam]
    if is_sharpness_aware(sam):
        return sam
    names = ", ".join(map(repr, OPTIMIZERS))
    raise InvalidInputError(
        f"Unknown sam {sam!r}. Choose one of {names}, or pass a subclass of "
        "SharpnessAwareOptimizer."
    )


def check_net_settings(net, params) -> None:
    """Raise if the user's net has settings that the ensemble would ignore."""
    for find_problem in (
        _number_problem,
        _duplicate_problem,
        _sam_problem,
        _unused_problem,
        _criterion_problem,
    ):
        problem = find_problem(net, params)
        if problem:
            raise InvalidInputError(problem)


def _number_problem(net, params):
    for name in ("batch_size", "max_epochs"):
        value: Any = getattr(net, name)
        good = isinstance(value, Integral) and not isinstance(value, bool)
        good = good and value > 0
        if params[name] is None and not good:
            message = f"{name} of the net must be a positive integer, got {value!r}."
            if name == "batch_size" and value == -1:
                message += " For one batch of all samples pass batch_size=len(X)."
            return message
    for name in ("iterator_train__num_workers", "iterator_valid__num_workers"):
        if getattr(net, name, 0) < 0:
            return f"{name} must be 0 or more, got {getattr(net, name)}."
    return None


def _duplicate_problem(net, params):
    """Return a message if a number is given twice, under two names of skorch."""
    size = net.get_params_for("iterator_train").get("batch_size")
    if size not in (None, params["batch_size"] or net.batch_size):
        return f"iterator_train__batch_size={size} is not used. Pass batch_size={size}."
    lr, own = params["lr"], net.get_params_for("optimizer").get("lr")
    if own is not None and lr not in (None, own):
        return (
            f"lr={lr} has no effect, because the net has optimizer__lr={own}. Remove "
            "one of them."
        )
    return None


def _sam_problem(net, params):
    given, optimizer = net.get_params_for("optimizer"), params["optimizer"]
    optimizer = optimizer or net.optimizer
    plain = params["selection"] == "none" and params["warmup"] == "sgd"
    if plain and is_sharpness_aware(optimizer):
        return (
            f"This ensemble does not apply SAM, but got optimizer="
            f"{optimizer.__name__}. Pass its base optimizer, or use "
            "SharpBalanceEnsembleClassifier with selection='all'."
        )
    # The default value of sam, and values that mean the same as the optimizer.
    allowed = ["sam", optimizer]
    allowed += [name for name, kind in OPTIMIZERS.items() if kind is optimizer]
    if is_sharpness_aware(optimizer) and params["sam"] not in allowed:
        return (
            f"sam={params['sam']!r} is not used, because optimizer="
            f"{optimizer.__name__} is sharpness-aware itself. Remove one of them."
        )
    of_base = not is_sharpness_aware(optimizer) and "rho" in argument_names(optimizer)
    if "rho" in given and not of_base:
        return (
            f"optimizer__rho={given['rho']} of the net is not used. Pass rho to the "
            "ensemble: a number, or one number per member."
        )
    return None


def _unused_problem(net, params):
    """Return a message if the net has a setting that is not used."""
    for name, (default, advice) in UNUSED.items():
        value = getattr(net, name, default)
        is_split = isinstance(value, ValidSplit) and value.cv == 5  # skorch's default
        is_plain = value is None or value is False or isinstance(value, str)
        if value is not default and not is_plain and not is_split:
            return f"{name}={value!r} is not used: {advice}"
    return None


def _criterion_problem(net, params):
    try:
        with random_stream("cpu"):  # it may draw random numbers
            given = net.get_params_for("criterion")
            criterion = net.initialized_instance(net.criterion, given)
    except Exception:  # raised with an explanation when a member is created
        return None
    # These two divide the loss of a batch by the sum of its class weights.
    averages = isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss)
    if averages and getattr(criterion, "weight", None) is not None:
        return (
            f"The weight of the criterion {type(criterion).__name__} would scale the "
            "learning rate, because it is applied to the loss of each sample. Pass "
            "class_weight to the ensemble instead."
        )
    if isinstance(criterion, nn.Module) and any(
        weight.requires_grad for weight in criterion.parameters()
    ):
        return (
            f"The criterion {type(criterion).__name__} has trainable parameters, which "
            "would be lost at the end of a phase. Move them into the module, or set "
            "requires_grad=False."
        )
    return None


def check_callbacks(net, has_valid) -> None:
    """Raise if a callback cannot work; ``has_valid`` if there is a validation set."""
    for name, callback in with_callbacks(net).callbacks_:
        kind = type(callback).__name__
        if isinstance(callback, ParamMapper):
            raise InvalidInputError(
                f"{kind} ({name}) would lose its effect at the end of a phase. Freeze "
                "or initialise weights in the constructor of the module: "
                "requires_grad=False is respected."
            )
        monitor = getattr(callback, "monitor", None)
        if not has_valid and isinstance(monitor, str) and monitor.startswith("valid_"):
            raise InvalidInputError(
                f"{kind} ({name}) monitors {monitor!r}, but no samples are held out. "
                "Pass for example validation_fraction=0.1 to the ensemble, or let the "
                "callback monitor 'train_loss'."
            )


def settings_in_force(prepared) -> dict[str, Any]:
    """Return the settings of a prepared fit by name, as numbers and strings."""
    net, training = prepared.trainer.net, prepared.trainer.training
    schedule = prepared.params["lr_schedule"]
    if not isinstance(schedule, LRScheduler):
        schedule = training.lr_schedule
    settings = {
        "lr": float(base_rate(net)),
        "lr_schedule": _name(schedule, LR_SCHEDULES),
        "max_epochs": int(training.n_epochs),
        "batch_size": int(training.batch_size),
        "optimizer": _name(base_optimizer(net)[0]),
        "weight_decay": _weight_decay(net),
        "train_transform": _name(training.transform),
        "device": ", ".join(resolve_devices(prepared.params["device"])),
        "precision": training.precision,
        "threads": prepared.engine.threads or torch.get_num_threads(),
    }
    for name in OPTIONS_SHOWN:
        value = getattr(net, name, None)
        if isinstance(value, int | float):
            settings[name.partition("__")[2]] = value
    if any(training.rho):
        settings["sam"] = _name(net.optimizer, OPTIMIZERS)
        is_common = len(set(training.rho)) == 1
        radii = ", ".join(f"{rho:g}" for rho in training.rho)
        settings["rho"] = training.rho[0] if is_common else radii
    return settings


def _name(value, known=None) -> str:
    """Return the name of a value among the known ones, or of its function or class."""
    for name, each in (known or {}).items():
        if each is value:
            return name
    if value is None or isinstance(value, RandomCropFlip):
        return repr(value)
    return getattr(value, "__name__", type(value).__name__)


def _weight_decay(net):
    """Return the weight decay of the net, of its optimizer, or that one's default."""
    optimizer, bound = base_optimizer(net)
    parameter = inspect.signature(optimizer).parameters.get("weight_decay")
    default = 0.0 if parameter is None else parameter.default
    value = getattr(net, "optimizer__weight_decay", bound.get("weight_decay", default))
    return float(value)
