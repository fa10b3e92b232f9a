"""Checks of parameters that scikit-learn's constraints cannot express."""

import warnings
from os import PathLike

import torch

from sklearn_sharpbalance._parameters import CONSTRAINTS
from sklearn_sharpbalance._validation import Interval
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

__all__ = ["check_params"]


def check_params(params):
    """Raise or warn if parameters are invalid although they satisfy their constraints.

    Parameters
    ----------
    params : dict
        Parameters of an estimator.
    """
    for name, rules in CONSTRAINTS.items():
        _refuse_bool(name, params.get(name), rules)
    for name in ("optimizer", "estimator__optimizer"):
        _check_optimizer(name, params.get(name))
    _check_callbacks(params.get("callbacks"))
    for name in ("checkpoint_dir", "memory"):
        _check_folder(name, params.get(name))
    every = params.get("checkpoint_every")
    if every is not None and params.get("checkpoint_dir") is None:
        warnings.warn(
            f"checkpoint_every={every} writes no checkpoints without checkpoint_dir. "
            "Pass the folder for them as checkpoint_dir.",
            SharpBalanceWarning,
            stacklevel=4,
        )


def _refuse_bool(name, value, rules):
    """Raise if a number is given as a bool, which Python accepts as an integer."""
    is_number = any(isinstance(rule, Interval) for rule in rules)
    if is_number and "boolean" not in rules and isinstance(value, bool):
        raise InvalidInputError(f"{name} must be a number, got {value}. Pass a number.")


def _check_optimizer(name, optimizer):
    is_object = isinstance(optimizer, torch.optim.Optimizer)
    if optimizer is None or (callable(optimizer) and not is_object):
        return
    known = {
        each.lower(): each
        for each, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    wanted, shown = str(optimizer), repr(optimizer)
    if is_object:
        wanted = type(optimizer).__name__
        shown = f"an object of {wanted}"
    found = known.get(wanted.lower(), "SGD")
    raise InvalidInputError(
        f"{name} must be a class of torch.optim or None, got {shown}. Pass "
        f"{name}=torch.optim.{found}, and its arguments as estimator__optimizer__..."
    )


def _check_callbacks(callbacks):
    for i, item in enumerate(callbacks or []):
        callback = item
        if isinstance(item, tuple | list):
            named = len(item) == 2 and isinstance(item[0], str)
            callback = item[1] if named else None
        is_one = hasattr(callback, "set_params") and hasattr(callback, "initialize")
        if not is_one:
            raise InvalidInputError(
                f"callbacks[{i}] must be a skorch callback or a pair (name, callback), "
                f"got {item!r}. Derive it from skorch.callbacks.Callback."
            )


def _check_folder(name, folder):
    if isinstance(folder, str | PathLike) and not str(folder).strip():
        raise InvalidInputError(
            f"{name}={folder!r} is not the name of a folder. Pass a folder, '.' for "
            "the current one, or None to write nothing."
        )
