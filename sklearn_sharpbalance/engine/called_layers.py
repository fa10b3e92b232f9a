"""Find the layers that a module calls one after the other."""

from typing import Any

from torch import nn

from sklearn_sharpbalance.runtime.torch_internals import (
    CHILDREN,
    child_modules,
    has_own_tensors,
)

__all__ = ["called_layers"]


def called_layers(module: nn.Module) -> list[str] | None:
    """Return the names of the layers that ``forward`` calls, in order.

    ``forward`` may mention no other names than those of the module's layers. It is
    called with a placeholder, on a copy whose layers only record their calls, and must
    pass the placeholder from layer to layer and return the last one. The module may
    have no weights and buffers besides those of its layers.

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
    if has_own_tensors(module) or type(module).__call__ is not nn.Module.__call__:
        return None
    layers = child_modules(module)
    code = getattr(type(module).forward, "__code__", None)
    # Other names may be side effects, which a stacked computation would leave out.
    if code is None or code.co_freevars or not set(code.co_names) <= set(layers):
        return None
    return _recorded_calls(module, layers)


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


def _recorded_calls(module, layers):
    """Return the names of the layers that a call uses; None if it is not a chain."""
    names: list[str] = []
    placeholders: list[Any] = [object()]
    recorders = {name: _Recorder(name, names, placeholders) for name in layers}
    probe = object.__new__(type(module))
    vars(probe).update(vars(module))
    vars(probe)[CHILDREN] = recorders
    try:
        output = probe.forward(placeholders[0])
    except Exception:  # any error: the placeholder supports no operation
        return None
    return names if output is placeholders[-1] else None
