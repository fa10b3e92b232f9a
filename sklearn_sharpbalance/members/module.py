"""The module inside every member: input statistics first, then the user's module."""

import copy
import warnings

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.runtime.memory_format import (
    contiguous_on_cpu,
    contiguous_weights_on_cpu,
)

__all__ = ["OWN_ARGUMENTS", "MemberModule", "fresh_copy"]

# Those that are not passed on to the user's module.
OWN_ARGUMENTS = ("module", "mean", "scale", "compile", "member_params")


class MemberModule(nn.Module):
    """A module that standardises its own input.

    Keeping the statistics in the module makes a member complete: it takes raw
    tables or uint8 pictures wherever it goes, also without the ensemble.

    Parameters
    ----------
    module : type, nn.Module or callable
        Class, factory, or an instance that serves as a prototype: it is copied and
        re-initialised, so that members differ.
    mean, scale : tensor or None, default=None
        Subtracted from and divided into the input; None leaves the input alone.
    compile : bool or None, default=None
        Whether training runs the module through ``torch.compile``.
    member_params : sequence of dict or None, default=None
        Settings of each member's own; see ``give_settings``. A member's net has
        taken them over when it makes its module.
    **kwargs
        Passed to the class or factory.
    """

    _is_float64 = False  # of members that were pickled by an older version

    def __init__(
        self,
        module,
        mean=None,
        scale=None,
        compile=None,
        member_params=None,
        **kwargs,
    ):
        super().__init__()
        is_instance = isinstance(module, nn.Module)
        self.module = fresh_copy(module) if is_instance else module(**kwargs)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self._is_float64 = _all_of(self.module, torch.float64)
        contiguous_weights_on_cpu(self.module)

    def _apply(self, *args, **kwargs):
        """Follow a change of the weights' type, device or memory format."""
        super()._apply(*args, **kwargs)
        self._is_float64 = _all_of(self.module, torch.float64)
        contiguous_weights_on_cpu(self.module)
        return self

    def __setstate__(self, state):
        """Take over weights that a GPU may have laid out channels-last."""
        super().__setstate__(state)
        contiguous_weights_on_cpu(self.module)

    def forward(self, X=None, /, **inputs):
        """Logits for a tensor, or for a dictionary passed as keywords."""
        if X is None:
            parts = {name: self._own(part) for name, part in inputs.items()}
            return self.module(**parts)
        return self.module(self.own_input(X))

    def own_input(self, X):
        """Standardised input that the inner module may change in place.

        The given one may be a view of the user's data, or needed for a second pass.
        """
        standardized = self.standardize(X)
        return X.clone() if standardized is X else standardized

    def standardize(self, X):
        """Input as the inner module sees it: float32 where it was of another type.

        For weights that are all of float64 it becomes float64; a module that was cast
        to half precision takes such input as it is.
        """
        X = X.to(self._input_type(X))
        if self.mean is not None:
            X = (X - self.mean) / self.scale
        return contiguous_on_cpu(X)

    def _own(self, part):
        """A part of the input that the inner module may change in place."""
        if not isinstance(part, torch.Tensor):
            return part
        dtype = self._input_type(part) if part.is_floating_point() else part.dtype
        return contiguous_on_cpu(part.to(dtype, copy=True))

    def _input_type(self, X):
        if self._is_float64:
            return torch.float64
        short = X.dtype in (torch.float16, torch.bfloat16)
        return X.dtype if short and _all_of(self.module, X.dtype) else torch.float32


def _all_of(module, dtype):
    weights = [w for w in module.parameters() if w.is_floating_point()]
    return bool(weights) and all(w.dtype is dtype for w in weights)


def fresh_copy(prototype):
    """Copy a module and initialise every layer again."""
    module = copy.deepcopy(prototype)
    stale = set()
    for layer in module.modules():
        kept = _start_anew(layer)
        if kept:
            stale.add(f"{type(layer).__name__} ({', '.join(kept)})")
    if stale:
        warnings.warn(
            "Weights that no reset_parameters of their layer initialises are those of "
            f"the given instance in every member: {', '.join(sorted(stale))}. Pass a "
            "class or a factory for members that start from different weights.",
            SharpBalanceWarning,
            stacklevel=2,
        )
    return module


def _start_anew(layer):
    """Initialise a layer's own weights; returns the names of those that stayed."""
    own = dict(layer.named_parameters(recurse=False))
    if not hasattr(layer, "reset_parameters"):
        return list(own)
    before = {
        name: (weight._version, weight.detach().clone())
        for name, weight in own.items()
        if not is_lazy(weight)
    }
    layer.reset_parameters()
    after = dict(layer.named_parameters(recurse=False))
    return [
        name
        for name, (version, value) in before.items()
        if after.get(name) is own[name] and _is_untouched(own[name], version, value)
    ]


def _is_untouched(weight, version, value):
    """Whether a weight was not written to.

    Values alone do not show it: constants may be written again. Nor does
    the version, which a write through ``weight.data`` leaves as it was; a constant
    that is unchanged counts as written, since constants are not drawn.
    """
    if weight._version != version or not weight.equal(value):
        return False
    return not bool((value == value.flatten()[:1]).all())
