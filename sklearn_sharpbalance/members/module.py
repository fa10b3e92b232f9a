"""The module inside every member: input statistics first, then the user's module."""

import copy
import warnings

import torch
from torch import nn

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

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

    def forward(self, X=None, /, **inputs):
        """Logits for a tensor, or for a dictionary passed as keywords."""
        if X is None:
            return self.module(**{name: _own(part) for name, part in inputs.items()})
        return self.module(self.own_input(X))

    def own_input(self, X):
        """Standardised input that the inner module may change in place.

        The given one may be a view of the user's data, or needed for a second pass.
        """
        standardized = self.standardize(X)
        return _own(X) if standardized is X else standardized

    def standardize(self, X):
        """Input as the inner module sees it; float64 becomes float32.

        It stays float64 for weights of float64.
        """
        wide = X.dtype is torch.float64 and not self._is_float64()
        if wide or not X.is_floating_point():
            X = X.to(torch.float32)
        if self.mean is not None:
            X = (X - self.mean) / self.scale
        return X

    def _is_float64(self):
        return any(weight.dtype is torch.float64 for weight in self.parameters())


def _own(part):
    return part.clone() if isinstance(part, torch.Tensor) else part


def fresh_copy(prototype):
    """Copy of a module with every layer initialised anew."""
    module = copy.deepcopy(prototype)
    stale = []
    for layer in module.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
        elif any(True for _ in layer.parameters(recurse=False)):
            stale.append(type(layer).__name__)
    if stale:
        warnings.warn(
            "Layers without reset_parameters keep the weights of the given instance "
            f"in every member: {sorted(set(stale))}. Pass a class or a factory for "
            "members that start from different weights.",
            SharpBalanceWarning,
            stacklevel=2,
        )
    return module
