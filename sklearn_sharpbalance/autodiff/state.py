"""Borrow a module for a computation, and give it back as it was."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "MATH_ATTENTION",
    "Shared",
    "device_of",
    "evaluation_mode",
    "trainable_parameters",
]


class Shared:
    """A setting that a process has only one of, until the last thread has left.

    Threads come and go in any order: one that put back what it found could put back
    what another had set.

    Parameters
    ----------
    make : callable
        Returns the context in which the setting holds.

    Examples
    --------
    >>> with MATH_ATTENTION:
    ...     torch.backends.cuda.flash_sdp_enabled()
    False
    """

    def __init__(self, make: Callable[[], AbstractContextManager]):
        self._make = make
        self._lock = threading.Lock()
        self._n_inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                # Context variables can be put back only where they were set, and it
                # may be another thread that leaves last.
                self._where, self._setting = copy_context(), self._make()
                self._where.run(self._setting.__enter__)
            self._n_inside += 1

    def __exit__(self, *error) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                self._where.run(self._setting.__exit__, None, None, None)


# Fused attention has neither second derivatives nor a rule for vmap.
MATH_ATTENTION = Shared(lambda: sdpa_kernel(SDPBackend.MATH))
# cuDNN refuses the backward pass of a recurrent layer in eval mode.
_WITHOUT_CUDNN = Shared(lambda: torch.backends.cudnn.flags(enabled=False))
# Compiled code calls no hooks and has no double backward.
_EAGER = Shared(lambda: torch.compiler.set_stance("force_eager"))


def device_of(module: nn.Module) -> torch.device:
    """Device of the module's first parameter or buffer; the CPU if it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name, each once.

    Examples
    --------
    >>> list(trainable_parameters(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[nn.Module]:
    """Put ``module`` in eval mode with autograd on; put everything back on exit.

    The training flag of every submodule, ``requires_grad`` of every parameter and the
    tensors that modules keep as attributes are what they were, however the block ends.
    Modules whose output for one sample depends on the other samples of the batch even
    in eval mode are refused.

    Examples
    --------
    >>> layer = nn.Dropout()
    >>> with evaluation_mode(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    _refuse_batch_statistics(module)
    modes = [(m, m.training) for m in module.modules()]
    flags = [(p, p.requires_grad) for p in module.parameters()]
    kept = [(m, dict(vars(m)), dict(m._buffers)) for m in module.modules()]
    try:
        module.eval()
        # An autocast around the call keeps casts of the weights, whatever has changed
        # them since; older versions of torch also keep those made without autograd.
        torch.clear_autocast_cache()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            if _has_recurrent_layer(module):
                stack.enter_context(_WITHOUT_CUDNN)
            if _is_compiled(module):
                stack.enter_context(_EAGER)
            yield module
    finally:
        for m, training in modes:
            m.training = training
        for p, requires_grad in flags:
            p.requires_grad_(requires_grad)
        for m, attributes, buffers in kept:
            _undo_replacements(m, attributes, buffers)
        torch.clear_autocast_cache()


def _undo_replacements(module, attributes, buffers):
    """Give a module back what it held, if its forward pass has replaced a tensor.

    Pruned layers and older reparametrisations keep the weight that they compute, other
    modules what they have seen. Such a tensor holds a graph, or is dead with the
    transformation that made it, and could be neither copied nor saved. The other
    attributes, such as the length of a cache, must fit to it.
    """
    now = vars(module), module._buffers
    if _identities(*now) != _identities(attributes, buffers):
        for names, before in zip(now, (attributes, buffers)):
            names.clear()
            names.update(before)


def _identities(*names):
    """What tensors are held under which name."""
    items = (item for held in names for item in held.items())
    return {name: id(value) for name, value in items if isinstance(value, Tensor)}


def _refuse_batch_statistics(module):
    for name, m in module.named_modules():
        if isinstance(m, _BatchNorm) and m.running_mean is None:
            raise InvalidInputError(
                f"The layer {name!r} ({type(m).__name__}) keeps no running statistics, "
                "so a sample's loss depends on its batch and the gradient of one "
                "sample is not defined. Build it with track_running_stats=True."
            )


def _has_recurrent_layer(module):
    return any(isinstance(m, nn.RNNBase) for m in module.modules())


def _is_compiled(module):
    return any(
        hasattr(m, "_orig_mod") or m._compiled_call_impl is not None
        for m in module.modules()
    )
