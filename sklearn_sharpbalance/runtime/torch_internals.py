"""Parts of torch and skorch without a public name.

All private names of torch and skorch that other packages need are here, so that a new
version has to be checked in one place.
"""

import inspect
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_internals

__all__ = [
    "BATCH_NORM",
    "CHILDREN",
    "CONVOLUTION",
    "DROPOUT",
    "INSTANCE_NORM",
    "SET_PARAMETERS",
    "TRACKING_NORM",
    "WEIGHT_NORM",
    "child_modules",
    "foreach_abs",
    "foreach_add",
    "foreach_add_",
    "foreach_copy_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_norm",
    "foreach_sub",
    "foreach_sub_",
    "has_own_tensors",
    "hooks_of",
    "in_place_version",
    "is_compiled",
    "is_compiled_wrapper",
    "own_buffers",
    "own_parameters",
    "relu_backward",
    "set_training",
    "step_of",
    "stop_workers",
    "with_state_metadata",
    "without_compiler_import",
    "without_vmap_warnings",
]

# Base classes of all batch and instance norms, also of those that users derive.
BATCH_NORM = _BatchNorm
INSTANCE_NORM = _InstanceNorm
TRACKING_NORM = _NormBase  # both: they may have running statistics

# Base classes of convolutions and dropout of any dimension.
CONVOLUTION = _ConvNd
DROPOUT = _DropoutNd

# Attribute of a module that has its layers by name.
CHILDREN = "_modules"

# Attribute of a skorch net that lists the names of the parameters set so far.
SET_PARAMETERS = "_params_to_validate"

# Attributes of a module that have the hooks around its call.
_AROUND = ("forward_pre", "forward", "backward_pre", "backward")
HOOKS = [f"_{name}_hooks" for name in _AROUND]

# The function behind torch.nn.utils.weight_norm, to recognise its calls.
WEIGHT_NORM = torch._weight_norm


# Operations on lists of tensors: torch's own optimizers use them, because one launch
# for all tensors is much faster than one for each. An underscore at the end of a name
# means in place, as in torch.


def foreach_abs(tensors: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_abs(tensors))


def foreach_norm(tensors: list[Tensor], order: float = 2) -> list[Tensor]:
    return list(torch._foreach_norm(tensors, order))


def foreach_add(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_add(tensors, others))


def foreach_sub(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_sub(tensors, others))


def foreach_mul(tensors: list[Tensor], factors: Any) -> list[Tensor]:
    """Multiply by a list of tensors, by one tensor or by a number."""
    return list(torch._foreach_mul(tensors, factors))


foreach_add_ = torch._foreach_add_
foreach_sub_ = torch._foreach_sub_
foreach_mul_ = torch._foreach_mul_
foreach_copy_ = torch._foreach_copy_


def relu_backward(grad: Tensor, output: Tensor) -> Tensor:
    """Return the gradient by the input of a ReLU, as one operation."""
    return torch.ops.aten.threshold_backward(grad, output, 0)


def in_place_version(tensor: Tensor) -> int:
    """Return a counter that each in-place operation on the tensor increases."""
    return tensor._version


def is_compiled(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` or ``Module.compile`` changed the call."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` made this module around the original one."""
    return hasattr(module, "_orig_mod")


def child_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the layers by name; ``named_children`` leaves out repeated ones."""
    return module._modules


def has_own_tensors(module: nn.Module) -> bool:
    """Return whether a module has weights or buffers besides those of its layers."""
    return bool(module._parameters or module._buffers)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the parameters of a module without those of its layers, by name."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the buffers of a module without those of its layers; some are None."""
    return module._buffers


def hooks_of(module: nn.Module) -> list[Any]:
    """Return the functions that are called before or after the module."""
    groups = filter(None, [getattr(module, name) for name in HOOKS])
    return [hook for group in groups for hook in group.values()]


def with_state_metadata(
    state: Mapping[str, Any], module: nn.Module
) -> OrderedDict[str, Any]:
    """Return a copy of a state dict with the metadata of the module's own one.

    Some layers read their version from it when they load a state.
    """
    copied: Any = OrderedDict(state)
    copied._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    return copied


def set_training(net: Any, training: bool) -> None:
    """Set the modules and the criterion of a skorch net to a mode, as skorch does."""
    net._set_training(training)


@contextmanager
def without_vmap_warnings() -> Iterator[None]:
    """Do not warn about operations that vmap runs sample by sample.

    This is a setting of the whole process, as a filter of warnings would be.
    """
    enable = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


# Methods of torch's optimizers are hidden from its compiler. The first call of each of
# them imports the compiler for that, some 800 modules in two seconds, although nothing
# can be hidden from a compiler that is not there. Each method looks for its hidden form
# in an attribute of the plain function.
COMPILER = "torch._dynamo"
HIDDEN_FORM = "__dynamo_disable"
HIDDEN_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


@contextmanager
def without_compiler_import() -> Iterator[None]:
    """Let torch's optimizers not import its compiler, unless it is imported already."""
    functions = [] if COMPILER in sys.modules else _plain_functions()
    for function in functions:
        setattr(function, HIDDEN_FORM, function)
    try:
        yield
    finally:
        for function in functions:
            delattr(function, HIDDEN_FORM)


def _plain_functions() -> list[Any]:
    """Return the functions of the optimizers' methods that have no hidden form yet."""
    methods = [getattr(Optimizer, name) for name in HIDDEN_METHODS]
    functions = [getattr(method, "__wrapped__", None) for method in methods]
    return [f for f in functions if f is not None and not hasattr(f, HIDDEN_FORM)]


def stop_workers(batches: Iterator) -> None:
    """End the workers of an iterator of a DataLoader.

    Torch does so when the iterator is collected. After an error in a worker a cycle
    keeps it alive. If the next loader forks before the cycle is collected, its workers
    close files that they share with the old ones, and torch waits ten seconds for them.
    """
    getattr(batches, "_shutdown_workers", lambda: None)()


def step_of(optimizer: Optimizer) -> None:
    """Make a step of an optimizer; do not import torch's compiler for it.

    Torch's optimizers import the compiler in every step, see
    :func:`without_compiler_import`. Where it is not imported yet, call the function
    that torch wraps, unless a hook or a scheduler has to follow the step.
    """
    is_torchs = type(optimizer).__module__.startswith("torch.optim.")
    if COMPILER in sys.modules or not is_torchs or _is_followed(optimizer):
        optimizer.step()
        return
    step: Any = inspect.unwrap(type(optimizer).step)
    with torch.set_grad_enabled(bool(optimizer.defaults.get("differentiable"))):
        step(optimizer)


def _is_followed(optimizer: Optimizer) -> bool:
    """Return whether something is called, or counted, with each step."""
    return bool(
        "step" in vars(optimizer)  # put there by a scheduler, or a GradScaler
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or optimizer_internals._global_optimizer_pre_hooks
        or optimizer_internals._global_optimizer_post_hooks
    )
