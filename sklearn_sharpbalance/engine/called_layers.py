"""Find the layers that a module calls one after the other."""

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import (
    CHILDREN,
    child_modules,
    has_own_tensors,
)

__all__ = ["called_layers"]

PLAIN = (bool, int, float, str, type(None))
# Attributes that the copy of a module has with other values.
REPLACED = (CHILDREN, "training")


def called_layers(module: nn.Module) -> list[str] | None:
    """Return the names of the layers that ``forward`` calls, in order.

    ``forward`` is called with a placeholder, on a copy whose layers only record their
    calls. It must pass the placeholder from layer to layer and return the last one,
    in training and in evaluation mode alike, draw no random numbers and change no
    attribute. The module may have no weights and buffers besides those of its layers,
    and no attributes besides numbers and strings.

    Parameters
    ----------
    module : nn.Module

    Returns
    -------
    names : list of str, or None
        None if ``forward`` does anything else.

    Examples
    --------
    >>> class Wrapper(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    ...
    ...     def forward(self, x):
    ...         return self.net(x)
    >>> called_layers(Wrapper())
    ['net']
    """
    if not _has_only_layers(module):
        return None
    names = _recorded_calls(module, training=True)
    if names is None or names != _recorded_calls(module, training=False):
        return None
    return names


def _has_only_layers(module):
    """Return whether the state of a module is that of its layers and plain values."""
    if has_own_tensors(module):
        return False
    if type(module).__call__ is not nn.Module.__call__:
        return False
    values = [value for name, value in vars(module).items() if name[0] != "_"]
    return all(isinstance(value, PLAIN) for value in values)


class _Recorder:
    """Replaces a layer: takes the last placeholder and returns a new one."""

    def __init__(self, name: str, names: list[str], placeholders: list[Any]):
        self.name, self.names, self.placeholders = name, names, placeholders

    def __call__(self, x):
        if x is not self.placeholders[-1]:
            raise TypeError("The input of a layer is not the output of the last one.")
        self.names.append(self.name)
        self.placeholders.append(object())
        return self.placeholders[-1]


def _recorded_calls(module, training):
    """Return the names of the layers that a call uses; None if it is not a chain."""
    names: list[str] = []
    placeholders: list[Any] = [object()]
    layers = {
        name: _Recorder(name, names, placeholders) for name in child_modules(module)
    }
    probe = object.__new__(type(module))
    vars(probe).update(vars(module))
    vars(probe).update({CHILDREN: layers, "training": training})
    with random_stream("cpu"):
        before = _generators()
        try:
            output = probe.forward(placeholders[0])
        except Exception:  # any error: the placeholder supports no operation
            return None
        if _generators() != before:
            return None
    if output is not placeholders[-1] or _attributes(probe) != _attributes(module):
        return None
    return names


def _attributes(module):
    return {name: value for name, value in vars(module).items() if name not in REPLACED}


def _generators():
    """Return the states of the generators that a call may draw from."""
    of_numpy = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), of_numpy, random.getstate()
