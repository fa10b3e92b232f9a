"""The module of every member: it standardises the input of the user's module."""

import copy
import warnings
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sklearn_sharpbalance._validation import POSITIVE, check_numbers
from sklearn_sharpbalance.data.statistics import piecewise_linear, soft_clip
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.runtime.devices import (
    allows_channels_last,
    channels_last_on_cpu,
    contiguous_on_cpu,
    contiguous_weights_on_cpu,
)

__all__ = ["OWN_ARGUMENTS", "MemberModule", "fresh_copy"]

# Arguments that are not passed to the user's module.
OWN_ARGUMENTS = (
    "module",
    "mean",
    "scale",
    "clip",
    "pieces",
    "compile",
    "member_params",
)


class MemberModule(nn.Module):
    """A module that standardises its own input.

    The statistics are part of the module, so that a member takes raw tables or uint8
    images also outside of the ensemble.

    Parameters
    ----------
    module : type, nn.Module or callable
        Class, factory or instance; an instance is copied and re-initialised, so that
        members differ.
    mean, scale : tensor or None, default=None
        Subtracted from the input, which is then divided by ``scale``; None does
        not standardise.
    clip : float or None, default=None
        Bound of standardised values z, which become ``z / sqrt(1 + (z / clip)**2)``:
        small values hardly change, and no outlier exceeds the bound.
    pieces : tensor of shape (3, P) or None, default=None
        More inputs of a table, see :func:`piecewise_linear`: a column, the value where
        it begins to rise, and the slope of each. They follow the bounded values.
    compile : bool or None, default=None
        Whether training runs the module through ``torch.compile``.
    member_params : sequence of dict or None, default=None
        Settings that differ between members, see ``give_settings``. Not used here: a
        member's net applies them before it makes its module.
    **kwargs
        Passed to the class or factory.
    """

    def __init__(
        self,
        module,
        mean=None,
        scale=None,
        clip=None,
        pieces=None,
        compile=None,
        member_params=None,
        **kwargs,
    ):
        super().__init__()
        is_instance = isinstance(module, nn.Module)
        self.module = fresh_copy(module) if is_instance else module(**kwargs)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.register_buffer("pieces", pieces)
        if clip is not None:  # a model file may have any value
            check_numbers(POSITIVE, clip=clip)
            clip = float(clip)
        self.clip = clip
        self._is_float64 = _all_of(self.module, torch.float64)
        contiguous_weights_on_cpu(self.module)

    def _apply(self, *args, **kwargs):
        """Update after a change of the weights' dtype, device or memory format."""
        super()._apply(*args, **kwargs)
        self._is_float64 = _all_of(self.module, torch.float64)
        contiguous_weights_on_cpu(self.module)
        return self

    def __setstate__(self, state):
        """Make weights contiguous that were channels-last on a GPU."""
        super().__setstate__(state)
        contiguous_weights_on_cpu(self.module)

    def forward(self, X=None, /, **inputs):
        """Return the logits of a tensor, or of a dictionary passed as keywords."""
        if X is None:
            parts = {name: self._own(part) for name, part in inputs.items()}
            return _logits(self.module(**parts))
        standardized = self.standardize(X)
        # The inner module may change its input in place, and X may be the user's data.
        return _logits(self.module(X.clone() if standardized is X else standardized))

    def standardize(self, X):
        """Return the standardised input in the dtype of the inner module.

        That is float64 if all weights are float64, half precision if input and weights
        are, and else float32.
        """
        X = X.to(self._input_type(X))
        if self.mean is not None:
            scaled = (X - self.mean) / self.scale
            X = scaled if self.clip is None else soft_clip(scaled, self.clip)
            if self.pieces is not None:
                more = piecewise_linear(scaled, self.pieces)
                X = torch.cat([X, more], dim=-1)
        if allows_channels_last(self.module):
            return channels_last_on_cpu(X)
        return contiguous_on_cpu(X)

    def _own(self, part):
        """Return a copy of a part of the input, which may be changed in place."""
        if not isinstance(part, torch.Tensor):
            return part
        dtype = self._input_type(part) if part.is_floating_point() else part.dtype
        return contiguous_on_cpu(part.to(dtype, copy=True))

    def _input_type(self, X):
        if self._is_float64:
            return torch.float64
        short = X.dtype in (torch.float16, torch.bfloat16)
        return X.dtype if short and _all_of(self.module, X.dtype) else torch.float32


def _logits(output):
    """Return the logits of a model output, as those of Hugging Face."""
    if isinstance(output, torch.Tensor | tuple):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _all_of(module, dtype):
    weights = [w for w in module.parameters() if w.is_floating_point()]
    return bool(weights) and all(w.dtype is dtype for w in weights)


def fresh_copy(prototype):
    """Copy a module and initialise every layer again."""
    module = copy.deepcopy(prototype)
    stale = set()
    for layer in module.modules():
        kept = _initialise_again(layer)
        if kept:
            stale.add(f"{type(layer).__name__} ({', '.join(kept)})")
    if stale:
        warnings.warn(
            "All members start from the same values of weights that reset_parameters "
            f"of their layer does not initialise: {', '.join(sorted(stale))}. Pass a "
            "class or a factory for members that start from different weights.",
            SharpBalanceWarning,
            stacklevel=2,
        )
    return module


def _initialise_again(layer):
    """Initialise a layer's weights; return the names of those that did not change.

    Constants, such as the weights of a norm layer, are the same after it.
    """
    own = dict(layer.named_parameters(recurse=False))
    if not hasattr(layer, "reset_parameters"):
        return list(own)
    before = {n: w.detach().clone() for n, w in own.items() if not is_lazy(w)}
    layer.reset_parameters()
    return [
        name
        for name, value in before.items()
        if getattr(layer, name).equal(value) and (value != value.flatten()[0]).any()
    ]
