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
        As the user configured it, nested parameters included.
    params : dict
        Parameters of the ensemble, which have the last word.
    """
    rules = (_number, _twice, _step, _groups, _data, _loader, _output, _criterion)
    for refusal in rules:
        problem = refusal(net, params)
        if problem:
            raise InvalidInputError(problem)


def _number(net, params):
    for name in ("batch_size", "max_epochs"):
        value: Any = getattr(net, name)
        good = isinstance(value, Integral) and not isinstance(value, bool)
        good = good and value > 0
        if params[name] is None and not good:
            also = " All samples at once are batch_size=len(X)." * (value == -1)
            return f"{name} of the net must be a positive number, got {value!r}.{also}"
    return None


def _twice(net, params):
    """Numbers that skorch takes by another name as well."""
    size = net.get_params_for("iterator_train").get("batch_size")
    if size not in (None, params["batch_size"] or net.batch_size):
        return (
            f"iterator_train__batch_size={size} is not used: batches are made before "
            f"they are read. Pass batch_size={size}."
        )
    lr, own = params["lr"], net.get_params_for("optimizer").get("lr")
    if own is not None and lr not in (None, own):
        return (
            f"lr={lr} has no effect beside optimizer__lr={own} of the net. Leave one "
            "of them out."
        )
    return None


def _step(net, params):
    given, optimizer = net.get_params_for("optimizer"), params["optimizer"]
    optimizer = optimizer or net.optimizer
    plain = params["selection"] == "none" and params["warmup"] == "sgd"
    if plain and is_sharpness_aware(optimizer):
        return (
            f"Such an ensemble never perturbs its weights, got optimizer="
            f"{optimizer.__name__}. Pass the optimizer that it wraps, or use "
            "SharpBalanceEnsembleClassifier with selection='all'."
        )
    if is_sharpness_aware(optimizer) and params["sam"] not in (
        *("sam", optimizer),  # the default, and the same thing said twice
        *(name for name, kind in OPTIMIZERS.items() if kind is optimizer),
    ):
        return (
            f"sam={params['sam']!r} is not used: optimizer={optimizer.__name__} is a "
            "sharpness-aware step itself. Leave one of them out."
        )
    if "rho" in given and "rho" not in option_names(optimizer):
        return (
            f"optimizer__rho={given['rho']} of the net is not used: the ensemble has a "
            "rho, for all members or one for each. Pass that."
        )
    return None


def _groups(net, params):
    given = net.get_params_for("optimizer")
    base = params["optimizer"] or given.get("base_optimizer", net.optimizer)
    for pattern, options in given.get("param_groups") or ():
        for name in sorted({"rho", "sam_rho"} - option_names(base)):
            if name in options:
                return (
                    f"{name}={options[name]} of the parameter group {pattern!r} is not "
                    "used: all weights of a member move by one rho, that of the "
                    "ensemble. Pass that, and leave it out of the group."
                )
    return None


def _data(net, params):
    ours = "members deal their samples by themselves"
    for name in ("iterator_train", "iterator_valid"):
        if getattr(net, name) is not DataLoader:
            return f"{name}={getattr(net, name)!r} is not used: {ours}. Leave it."
    for name in ("sampler", "batch_sampler"):
        if net.get_params_for("iterator_train").get(name) is not None:
            return (
                f"iterator_train__{name} is not used: {ours}. To weigh samples or "
                "classes pass sample_weight to fit, or class_weight."
            )
    if net.dataset is not Dataset:
        return (
            f"dataset={net.dataset!r} is not used: {ours}. Pass an instance of a torch "
            "Dataset as X."
        )
    split = net.train_split
    if split is not None and not (isinstance(split, ValidSplit) and split.cv == 5):
        return (
            f"train_split={split!r} is not used: {ours}. To hold samples out pass "
            "validation_fraction to the ensemble."
        )
    return None


def _loader(net, params):
    for name in ("iterator_train", "iterator_valid"):
        if net.get_params_for(name).get("collate_fn") is not None:
            return (
                f"{name}__collate_fn is not used: shapes, labels, statistics and "
                "scores are those of single items. Let the Dataset return samples as "
                "the module takes them, and pass what changes them from epoch to epoch "
                "as train_transform."
            )
    if net.get_params_for("iterator_train").get("drop_last"):
        return (
            "iterator_train__drop_last=True is not used: every epoch takes every "
            "sample, in batches of one size. Leave it."
        )
    return None


def _output(net, params):
    if net.get_params_for("criterion").get("weight") is not None:
        return (
            "criterion__weight would scale the learning rate, since losses are summed "
            "sample by sample. Pass class_weight to the ensemble, which does not."
        )
    if callable(net.predict_nonlinearity):
        return (
            f"predict_nonlinearity={net.predict_nonlinearity!r} is not used: members "
            "are combined by their logits. Put it into the module, or pass a function "
            "as aggregation."
        )
    return None


def _criterion(net, params):
    criterion = _made_criterion(net)
    # Of these two a mean is one over the weights, which a sum of losses is not.
    averages = isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss)
    if averages and getattr(criterion, "weight", None) is not None:
        return (
            f"The weight of the criterion {type(criterion).__name__} would scale the "
            "learning rate, since losses are summed sample by sample. Pass "
            "class_weight to the ensemble, which does not."
        )
    if isinstance(criterion, nn.Module) and any(
        weight.requires_grad for weight in criterion.parameters()
    ):
        return (
            f"The criterion {type(criterion).__name__} has parameters to train, which "
            "would be lost when a phase of training ends. Put them into the module, or "
            "set requires_grad=False."
        )
    return None


def _made_criterion(net):
    """The criterion as members will have it; None if it cannot be made."""
    with random_stream("cpu"):  # it may draw
        try:
            given = net.get_params_for("criterion")
            return net.initialized_instance(net.criterion, given)
        except Exception:  # raised again, with an explanation, where a member is made
            return None


def check_callbacks(net, has_valid) -> None:
    """Refuse callbacks that could not work.

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
                f"{kind} ({name}) would lose its effect when a phase of training ends. "
                "Freeze or initialise weights where the module makes its layers: "
                "requires_grad=False is respected."
            )
        monitor = getattr(callback, "monitor", None)
        if not has_valid and isinstance(monitor, str) and monitor.startswith("valid_"):
            raise InvalidInputError(
                f"{kind} ({name}) looks at {monitor!r}, and no samples are held out. "
                "Pass for example validation_fraction=0.1 to the ensemble, or let the "
                "callback monitor 'train_loss'."
            )
