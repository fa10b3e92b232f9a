"""What keeps members from being trained outside of skorch's own loop."""

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
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = [
    "UNSEEN",
    "base_optimizer",
    "callback_refusal",
    "check_overrides",
    "meta_module",
    "shared_refusal",
]

UNSEEN = "the module cannot be built on the meta device to look at it"

# Optimizers whose update of one number does not look at any other number.
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

# Methods that are called where a net trains by itself, and by no other engine.
SKORCH_ONLY = (
    "infer",
    "get_loss",
    "initialize_module",
    "initialize_criterion",
    "initialize_optimizer",
    "initialized_instance",
    "get_params_for_optimizer",
)

# Methods of skorch's loop that no engine calls: members train on mixed batches, of
# which one part gets SAM, and predict together. Engines call notify where epochs begin
# and end, and where batches do only if a callback has a method for them.
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
    """Raise an error if a net's class changes a step that members do not take.

    Parameters
    ----------
    net : NeuralNetClassifier

    Examples
    --------
    >>> class Mine(NeuralNetClassifier):
    ...     def train_step(self, batch, **fit_params):
    ...         return super().train_step(batch, **fit_params)
    >>> check_overrides(Mine(nn.Linear))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    sklearn_sharpbalance.exceptions.InvalidInputError: Mine overrides train_step, ...
    """
    own = _overridden(net, NOT_CALLED)
    if own:
        raise InvalidInputError(
            f"{type(net).__name__} overrides {', '.join(own)}, which are not called in "
            "an ensemble: members train and predict in other loops. Supported "
            "are infer, get_loss and the initialize_... methods, and callbacks for "
            "epochs, batches and gradients. Use those, and do not override the others."
        )


def _overridden(net, names):
    """Those of skorch's methods that the net's class has in another form."""
    kind, skorch = type(net), NeuralNetClassifier
    return [n for n in names if getattr(kind, n, None) is not getattr(skorch, n, None)]


def shared_refusal(net):
    """Why this net needs skorch's loop, whatever its module; None if it does not."""
    for hook in _overridden(net, SKORCH_ONLY):
        return f"{type(net).__name__} overrides {hook}"
    if net.criterion is not nn.CrossEntropyLoss:
        return "the criterion is not the class CrossEntropyLoss"
    if set(net.get_params_for("criterion")) - {"label_smoothing", "reduction"}:
        return "CrossEntropyLoss has parameters other than label_smoothing"
    optimizer, _ = base_optimizer(net)
    if optimizer not in ELEMENTWISE:
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        return f"{name} is not among the optimizers known to work number by number"
    if any("param_groups" in name for name in net.get_params(deep=False)):
        return "the optimizer has parameter groups of its own"
    return callback_refusal(net)


def base_optimizer(net):
    """The optimizer that makes a net's updates, and options that are bound to it.

    Examples
    --------
    >>> from sklearn_sharpbalance.optim import SAM
    >>> base = partial(torch.optim.SGD, momentum=0.9)
    >>> options = {"optimizer": SAM, "optimizer__base_optimizer": base}
    >>> base_optimizer(NeuralNetClassifier(nn.Linear, **options))
    (<class 'torch.optim.sgd.SGD'>, {'momentum': 0.9})
    """
    default = inspect.signature(net.optimizer).parameters.get("base_optimizer")
    base = getattr(net, "optimizer__base_optimizer", default and default.default)
    bound: dict[str, Any] = {}
    while isinstance(base, partial):
        bound = {**base.keywords, **bound}
        base = base.func
    return base, bound


def callback_refusal(net):
    """Why the net's callbacks need skorch's loop; None if they do not."""
    net = with_callbacks(net)
    for _, callback in net.callbacks_:
        if isinstance(callback, LRScheduler):
            return "an LRScheduler sets the learning rate by itself"
    for prefix, event in (("on_batch_", "every batch"), ("on_grad_", "gradients")):
        for callback in callbacks_for(net, prefix):
            if not _hears_validation_only(callback):
                return f"{type(callback).__name__} listens to {event}"
    return None


def _hears_validation_only(callback):
    """Whether a callback listens to batches only to reuse predictions on them."""
    on_train = getattr(callback, "on_train", True)
    caches = getattr(callback, "use_caching", True)
    return isinstance(callback, EpochScoring) and not (on_train and caches)


def meta_module(net):
    """The members' module without memory, to look at its layers; None if it fails."""
    module = net.module__module
    if isinstance(module, nn.Module):
        return module
    kwargs = net.get_params_for("module")
    kwargs = {k: v for k, v in kwargs.items() if k not in OWN_ARGUMENTS}
    try:
        with torch.device("meta"), random_stream("cpu"):  # it may draw
            return module(**kwargs)
    except Exception:  # whatever a user's factory raises: it will be built for real
        return None
