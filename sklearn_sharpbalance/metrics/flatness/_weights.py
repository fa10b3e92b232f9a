"""The trainable weights of a module as one vector, restored after use."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sklearn_sharpbalance.autodiff import trainable_parameters
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.runtime.torch_internals import foreach_copy_

__all__ = ["Weights", "trainable_or_refuse"]


def trainable_or_refuse(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name; raise if there are none."""
    named = trainable_parameters(module)
    if not named:
        raise InvalidInputError(
            f"{type(module).__name__} has no trainable parameters: all have "
            "requires_grad=False. Unfreeze some."
        )
    return named


class Weights:
    """Trainable parameters as one flat vector.

    As a context manager it restores them bit for bit on exit.

    Parameters
    ----------
    module : Module
    mask : None, "nonzero" or dict of str to array, default=None
        Which weights may move: all, those that are not exactly zero (a pruned
        network), or by parameter name, where parameters without a mask may move.

    Attributes
    ----------
    origin : tensor of shape (d,)
    free : tensor of shape (d,)
        1.0 where a weight may move, else 0.0.
    """

    def __init__(self, module: nn.Module, mask: Any = None):
        named = trainable_or_refuse(module)
        self.params: list[Tensor] = list(named.values())
        self.sizes = [p.numel() for p in self.params]
        self.origin = self.flatten(p.detach() for p in self.params)  # (d,)
        self.free = self._free(list(named), mask)

    def _free(self, names, mask):
        """Return the mask as a vector (d,)."""
        if mask is None:
            return torch.ones_like(self.origin)
        if isinstance(mask, str) and mask == "nonzero":
            return (self.origin != 0).to(self.origin.dtype)
        if not isinstance(mask, Mapping):
            raise InvalidInputError(
                "mask must be None, 'nonzero' or a dict of parameter names, got "
                f"{mask!r}."
            )
        unknown = set(mask) - set(names)
        if unknown:
            raise InvalidInputError(
                f"mask has the keys {sorted(unknown, key=str)}, but the trainable "
                f"parameters of the module are {names}."
            )
        parts = [
            _one_mask(name, p, mask.get(name)) for name, p in zip(names, self.params)
        ]
        return self.flatten(parts)

    def flatten(self, tensors: Iterable[Tensor | None]) -> Tensor:
        """Return one vector (d,) from a tensor per parameter; None means zeros."""
        parts = [
            torch.zeros_like(p) if t is None else t
            for t, p in zip(tensors, self.params)
        ]
        return torch.cat([t.to_dense().reshape(-1) for t in parts])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a tensor per parameter from a vector (d,)."""
        pieces = vector.split(self.sizes)
        return [v.view_as(p).to(p.dtype) for v, p in zip(pieces, self.params)]

    def write(self, vector: Tensor) -> None:
        """Copy a vector (d,) into the parameters of the module."""
        with torch.no_grad():
            foreach_copy_(self.params, self.split(vector))
        # An enclosing autocast would keep using its casts of the old weights.
        torch.clear_autocast_cache()

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *error) -> None:
        self.write(self.origin)


def _one_mask(name, parameter, mask):
    if mask is None:
        return torch.ones_like(parameter)
    try:
        array = mask if torch.is_tensor(mask) else torch.as_tensor(np.asarray(mask))
    except (TypeError, ValueError) as error:  # texts, rows of unequal lengths
        raise InvalidInputError(
            f"mask[{name!r}] must be an array of numbers or bools, nonzero where the "
            f"weight may move, got {mask!r}."
        ) from error
    if array.shape != parameter.shape:
        raise InvalidInputError(
            f"mask[{name!r}] has shape {tuple(array.shape)}, but the parameter has "
            f"{tuple(parameter.shape)}."
        )
    return (array.to(parameter.device) != 0).to(parameter.dtype)
