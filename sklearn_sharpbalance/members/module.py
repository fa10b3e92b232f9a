"""The module inside every member: input statistics first, then the user's module."""

import copy
import warnings

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = ["OWN_ARGUMENTS", "MemberModule", "contiguous_on_cpu", "fresh_copy"]

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

    # On a CPU every tensor that reaches the inner module is contiguous, weights
    # included. oneDNN corrupts the heap, hangs or returns wrong weight gradients for a
    # 1x1 convolution with a stride whose input or weight lies channels-last in memory
    # and has fewer than 16 channels (uxlfoundation/oneDNN#6035, x86-64):
    #     x = torch.randn(17, 8, 16, 16).contiguous(memory_format=torch.channels_last)
    #     w = torch.randn(16, 8, 1, 1, requires_grad=True)
    #     for _ in range(300):
    #         torch.conv2d(x, w, stride=2).sum().backward()
    # The last line also fails for a contiguous x and w.as_strided(w.shape, (8, 1, 8, 8)).

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
        _make_contiguous_on_cpu(self.module)

    def _apply(self, *args, **kwargs):
        """Follow a change of the weights' type, device or memory format."""
        super()._apply(*args, **kwargs)
        self._is_float64 = _all_of(self.module, torch.float64)
        _make_contiguous_on_cpu(self.module)
        return self

    def __setstate__(self, state):
        """Take over weights that a GPU may have laid out channels-last."""
        super().__setstate__(state)
        _make_contiguous_on_cpu(self.module)

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
        if standardized is not X:
            return standardized
        return X.clone(memory_format=_memory_format(X))

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
        return part.to(dtype, copy=True, memory_format=_memory_format(part))

    def _input_type(self, X):
        if self._is_float64:
            return torch.float64
        short = X.dtype in (torch.float16, torch.bfloat16)
        return X.dtype if short and _all_of(self.module, X.dtype) else torch.float32


def _memory_format(x):
    """Format of a copy: contiguous on a CPU, else that of the given tensor."""
    on_cpu = x.device.type == "cpu"
    return torch.contiguous_format if on_cpu else torch.preserve_format


def contiguous_on_cpu(x):
    """The tensor, or on a CPU its copy in C order if its strides are others.

    ``Tensor.contiguous`` ignores the strides of axes of length 1, by which convolutions
    tell whether a tensor lies channels-last.
    """
    if x.device.type != "cpu" or x.layout is not torch.strided:
        return x
    strides = torch.empty(x.shape, device="meta").stride()
    if x.stride() == strides:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _make_contiguous_on_cpu(module):
    """Lay out weights and buffers in C order if they are on a CPU."""
    for weight in (*module.parameters(), *module.buffers()):
        if not is_lazy(weight):
            weight.data = contiguous_on_cpu(weight.data)


def _all_of(module, dtype):
    weights = [w for w in module.parameters() if w.is_floating_point()]
    return bool(weights) and all(w.dtype is dtype for w in weights)


def fresh_copy(prototype):
    """Copy of a module with every layer initialised anew."""
    module = copy.deepcopy(prototype)
    stale = set()
    for layer in module.modules():
        kept = _start_anew(layer)
        if kept:
            stale.add(f"{type(layer).__name__} ({', '.join(kept)})")
    if stale:
        warnings.warn(
            "Weights that no reset_parameters of their layer draws anew are those of "
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
        for name, old in before.items()
        if after.get(name) is own[name] and _is_untouched(own[name], *old)
    ]


def _is_untouched(weight, version, value):
    """Whether nobody wrote to a weight.

    Values alone do not tell: constants are written anew and stay the same. Nor does
    the version, which a write through ``weight.data`` leaves as it was; a constant
    that was written that way is taken for written, as nobody draws constants.
    """
    if weight._version != version or not weight.equal(value):
        return False
    return not bool((value == value.flatten()[:1]).all())
