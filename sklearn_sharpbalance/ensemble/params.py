"""Parameters: nested ones such as ``sharpness__chunk_size``, and their checks."""

import re
from os import PathLike
from typing import Any

import torch
from sklearn.base import BaseEstimator
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance._parameters import CONSTRAINTS
from sklearn_sharpbalance._validation import Interval
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.net import check_names, with_objects


class NestedParamsMixin(BaseEstimator):
    """Accepts ``part__name=value`` also if the part is a name, a class or None.

    scikit-learn sets such a parameter on the part, which must be an object. Here a part
    may also be a name ("fisher_trace"), a module class or None; its parameters are then
    attributes of the ensemble, and passed to the part in ``fit``.
    """

    _nested_parts: tuple[str, ...] = ()

    def _keep_nested(self, params):
        for name, value in params.items():
            if name == "nested":  # scikit-learn takes **nested for a parameter
                continue
            if name.partition("__")[0] not in self._nested_parts or "__" not in name:
                raise TypeError(
                    f"{type(self).__name__} got an unexpected parameter {name!r}. "
                    f"Parameters of a part start with one of "
                    f"{[part + '__' for part in self._nested_parts]}."
                )
            setattr(self, name, value)

    def _nested(self, part):
        """Return the nested parameters of a part without its prefix."""
        prefix = part + "__"
        return {
            k[len(prefix) :]: v for k, v in vars(self).items() if k.startswith(prefix)
        }

    def _forget_nested(self, part):
        for name in self._nested(part):
            delattr(self, f"{part}__{name}")

    def _is_part_of_net(self, name, params):
        """Whether a parameter sets a module as a part of a skorch net."""
        part, _, inner = name.partition("__")
        owner = params.get(part, getattr(self, part, None))
        is_part = inner and "__" not in inner and isinstance(params[name], nn.Module)
        return is_part and isinstance(owner, NeuralNetClassifier)

    def _check_names_of_nets(self, params):
        """Raise if a part that is a skorch net has no setting of a name."""
        for name in params:
            part, separator, inner = name.partition("__")
            owner = params.get(part, getattr(self, part, None))
            if separator and isinstance(owner, NeuralNetClassifier):
                check_names(owner, [inner], prefix=f"{part}__")

    def get_params(self, deep=True):
        """Get the parameters of this estimator, including nested ones.

        Parameters
        ----------
        deep : bool, default=True
            Whether to add the parameters of parts that are estimators.

        Returns
        -------
        params : dict
        """
        kept = {k: v for k, v in vars(self).items() if "__" in k.strip("_")}
        return super().get_params(deep=deep) | kept

    def set_params(self, **params):
        """Set parameters of this estimator and of its parts.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : estimator instance
        """
        direct: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        for name, value in params.items():
            part, separator, _ = name.partition("__")
            owner = params.get(part, getattr(self, part, None))
            is_nested = bool(separator) and part in self._nested_parts
            if name == "nested" or (is_nested and not hasattr(owner, "set_params")):
                kept[name] = value
            else:
                direct[name] = value
        objects = {name for name in direct if self._is_part_of_net(name, params)}
        self._check_names_of_nets(direct)
        super().set_params(**{k: v for k, v in direct.items() if k not in objects})
        for name in objects:
            part, _, inner = name.partition("__")
            net = with_objects(getattr(self, part), {inner: params[name]})
            setattr(self, part, net)
        for part in self._nested_parts:
            if hasattr(params.get(part), "set_params"):
                self._forget_nested(part)  # the object has its own parameters
        self._keep_nested(kept)
        return self


def check_params(params):
    """Raise if parameters are invalid although they satisfy their constraints."""
    for name, rules in CONSTRAINTS.items():
        value = params.get(name)
        is_number = any(isinstance(rule, Interval) for rule in rules)
        if is_number and "boolean" not in rules and isinstance(value, bool):
            raise InvalidInputError(
                f"{name} must be a number, got {value}. Pass a number."
            )
    for name in ("optimizer", "estimator__optimizer"):
        _check_optimizer(name, params.get(name))
    _check_callbacks(params.get("callbacks"))
    for name in ("checkpoint_dir", "memory"):
        _check_folder(name, params.get(name))


def _check_optimizer(name, optimizer):
    is_object = isinstance(optimizer, torch.optim.Optimizer)
    if optimizer is None or (callable(optimizer) and not is_object):
        return
    shown = f"an object of {type(optimizer).__name__}" if is_object else repr(optimizer)
    raise InvalidInputError(
        f"{name} must be a class of torch.optim or None, got {shown}. Pass for example "
        f"{name}=torch.optim.AdamW, and its arguments as estimator__optimizer__..."
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
    fields = re.findall(r"\{\w*\}", str(folder).replace("{fit}", ""))
    if name == "checkpoint_dir" and fields:
        raise InvalidInputError(
            f"checkpoint_dir={folder!r} has {fields[0]}, but only {{fit}} is replaced, "
            "by a digest of data and parameters. Use {fit}, or remove the braces."
        )
    if isinstance(folder, str | PathLike) and not str(folder).strip():
        raise InvalidInputError(
            f"{name}={folder!r} is not the name of a folder. Pass a folder, '.' for "
            "the current one, or None to write nothing."
        )
