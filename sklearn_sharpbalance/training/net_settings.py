"""Checks of a skorch net for settings that members cannot use."""

from numbers import Integral
from typing import Any

from skorch.callbacks import ParamMapper
from skorch.dataset import Dataset, ValidSplit
from torch import nn
from torch.utils.data import DataLoader

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.net import (
    is_sharpness_aware,
    option_names,
    with_callbacks,
)
from sklearn_sharpbalance.optim import OPTIMIZERS
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["check_callbacks", "check_net_settings"]


def check_net_settings(net, params) -> None:
    """Raise if the net has settings that the ensemble would ignore.

    Parameters
    ----------
    net : NeuralNetClassifier
        The user's net, with nested parameters set.
    params : dict
        Parameters of the ensemble, which override those of the net.
    """
    rules = (
        _number_problem,
        _duplicate_problem,
        _sam_problem,
        _param_group_problem,
        _data_problem,
        _loader_problem,
        _output_problem,
        _criterion_problem,
    )
    for find_problem in rules:
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
    if "rho" in given and "rho" not in option_names(optimizer):
        return (
            f"optimizer__rho={given['rho']} of the net is not used. Pass rho to the "
            "ensemble: a number, or one number per member."
        )
    return None


def _param_group_problem(net, params):
    given = net.get_params_for("optimizer")
    base = params["optimizer"] or given.get("base_optimizer", net.optimizer)
    for pattern, options in given.get("param_groups") or ():
        for name in sorted({"rho", "sam_rho"} - option_names(base)):
            if name in options:
                return (
                    f"{name}={options[name]} of the parameter group {pattern!r} is not "
                    "used: all weights of a member have one rho. Remove it from the "
                    "group, and pass rho to the ensemble."
                )
    return None


def _data_problem(net, params):
    reason = "the ensemble assigns samples to batches itself"
    for name in ("iterator_train", "iterator_valid"):
        if getattr(net, name) is not DataLoader:
            return f"{name}={getattr(net, name)!r} is not used: {reason}. Remove it."
    for name in ("sampler", "batch_sampler"):
        if net.get_params_for("iterator_train").get(name) is not None:
            return (
                f"iterator_train__{name} is not used: {reason}. To weight samples or "
                "classes, pass sample_weight to fit, or class_weight."
            )
    if net.dataset is not Dataset:
        return (
            f"dataset={net.dataset!r} is not used: {reason}. Pass an instance of a "
            "torch Dataset as X."
        )
    split = net.train_split
    if split is not None and not (isinstance(split, ValidSplit) and split.cv == 5):
        return (
            f"train_split={split!r} is not used: {reason}. To hold out samples, pass "
            "validation_fraction to the ensemble."
        )
    return None


def _loader_problem(net, params):
    for name in ("iterator_train", "iterator_valid"):
        if net.get_params_for(name).get("collate_fn") is not None:
            return (
                f"{name}__collate_fn is not used: shapes, labels, statistics and "
                "scores are computed from single items. Let the Dataset return samples "
                "as the module takes them, and pass augmentation as train_transform."
            )
    if net.get_params_for("iterator_train").get("drop_last"):
        return (
            "iterator_train__drop_last=True is not used: every epoch uses every "
            "sample, in batches of equal size. Remove it."
        )
    return None


def _output_problem(net, params):
    if net.get_params_for("criterion").get("weight") is not None:
        return (
            "criterion__weight would scale the learning rate, because it is applied to "
            "the loss of each sample. Pass class_weight to the ensemble instead."
        )
    if callable(net.predict_nonlinearity):
        return (
            f"predict_nonlinearity={net.predict_nonlinearity!r} is not used: members "
            "are combined by their logits. Move it into the module, or pass a function "
            "as aggregation."
        )
    return None


def _criterion_problem(net, params):
    criterion = _made_criterion(net)
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


def _made_criterion(net):
    """Return the criterion of the members; None if it cannot be created."""
    with random_stream("cpu"):  # it may draw random numbers
        try:
            given = net.get_params_for("criterion")
            return net.initialized_instance(net.criterion, given)
        except Exception:  # raised with an explanation when a member is created
            return None


def check_callbacks(net, has_valid) -> None:
    """Raise if a callback cannot work.

    Parameters
    ----------
    net : NeuralNetClassifier
        From ``member_net``; not changed.
    has_valid : bool
        Whether samples will be held out.
    """
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
