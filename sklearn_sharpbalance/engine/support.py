"""Reasons why members cannot be trained outside of skorch's own loop."""

import inspect
from functools import partial
from typing import Any

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import EpochScoring, LRScheduler
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.module import OWN_ARGUMENTS
from sklearn_sharpbalance.members.net import with_callbacks
from sklearn_sharpbalance.members.session import callbacks_for
from sklearn_sharpbalance.runtime.rng import WithoutDraws, random_stream

__all__ = [
    "NOT_INSPECTED",
    "base_optimizer",
    "callback_refusal",
    "check_overrides",
    "meta_module",
    "shared_refusal",
]

NOT_INSPECTED = "the module cannot be built on the meta device to inspect its layers"

# Optimizers that update each number independently of all other numbers.
ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)

# Methods that only the skorch engine calls.
SKORCH_ONLY = (
    "infer",
    "get_loss",
    "initialize_module",
    "initialize_criterion",
    "initialize_optimizer",
    "initialized_instance",
    "get_params_for_optimizer",
)

# Methods of skorch's loop that no engine calls: batches of members have samples with
# SAM or without, and members predict together. Engines call notify at the start and
# end of epochs; of batches only if a callback has a method for them.
NOT_CALLED = (
    "fit",
    "partial_fit",
    "fit_loop",
    "run_single_epoch",
    "train_step",
    "train_step_single",
    "get_train_step_accumulator",
    "validation_step",
    "evaluation_step",
    "get_iterator",
    "get_split_datasets",
    "on_train_begin",
    "on_batch_begin",
    "on_batch_end",
    "on_grad_computed",
    "predict",
    "predict_proba",
    "forward",
    "forward_iter",
)


def check_overrides(net):
    """Raise if a net's class overrides a method that no engine calls."""
    own = _overridden(net, NOT_CALLED)
    if own:
        raise InvalidInputError(
            f"{type(net).__name__} overrides {', '.join(own)}, which are not called in "
            "an ensemble: members train and predict in other loops. Supported "
            "are infer, get_loss and the initialize_... methods, and callbacks for "
            "epochs, batches and gradients. Use those, and do not override the others."
        )


def _overridden(net, names):
    """Return the names of skorch's methods that the net's class overrides."""
    kind, skorch = type(net), NeuralNetClassifier
    return [n for n in names if getattr(kind, n, None) is not getattr(skorch, n, None)]


def shared_refusal(net):
    """Return why this net needs skorch's loop with any module; None if it does not."""
    for hook in _overridden(net, SKORCH_ONLY):
        return f"{type(net).__name__} overrides {hook}"
    if net.criterion is not nn.CrossEntropyLoss:
        return "the criterion is not the class CrossEntropyLoss"
    if set(net.get_params_for("criterion")) - {"label_smoothing", "reduction"}:
        return "CrossEntropyLoss has parameters other than label_smoothing"
    optimizer, _ = base_optimizer(net)
    if optimizer not in ELEMENTWISE:
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        return f"{name} is not among the optimizers known to work elementwise"
    if any("param_groups" in name for name in net.get_params(deep=False)):
        return "the optimizer has parameter groups"
    return callback_refusal(net)


def base_optimizer(net):
    """Return the optimizer inside the sharpness-aware one, and its bound options."""
    default = inspect.signature(net.optimizer).parameters.get("base_optimizer")
    base = getattr(net, "optimizer__base_optimizer", default and default.default)
    bound: dict[str, Any] = {}
    while isinstance(base, partial):
        bound = {**base.keywords, **bound}
        base = base.func
    return base, bound


def callback_refusal(net):
    """Return why the net's callbacks need skorch's loop; None if they do not."""
    net = with_callbacks(net)
    for _, callback in net.callbacks_:
        if isinstance(callback, LRScheduler):
            return "an LRScheduler sets the learning rate"
    for prefix, event in (("on_batch_", "every batch"), ("on_grad_", "gradients")):
        for callback in callbacks_for(net, prefix):
            # On validation data, EpochScoring uses batches only to cache predictions.
            if not isinstance(callback, EpochScoring) or (
                callback.on_train and callback.use_caching
            ):
                return f"{type(callback).__name__} is called for {event}"
    return None


def meta_module(net):
    """Return the members' module without memory for its weights; None if it fails."""
    module = net.module__module
    if isinstance(module, nn.Module):
        return module
    kwargs = net.get_params_for("module")
    kwargs = {k: v for k, v in kwargs.items() if k not in OWN_ARGUMENTS}
    try:
        with torch.device("meta"), WithoutDraws(), random_stream("cpu"):
            return module(**kwargs)
    except Exception:  # any error of a user's factory: it is raised again in the fit
        return None
