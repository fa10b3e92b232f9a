"""Use a module for a computation and restore its state."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.runtime.process import Shared
from sklearn_sharpbalance.runtime.torch_internals import (
    BATCH_NORM,
    is_compiled,
    without_vmap_warnings,
)

# Fused attention has neither second derivatives nor a rule for vmap.
MATH_ATTENTION = Shared(lambda: sdpa_kernel(SDPBackend.MATH))
WITHOUT_VMAP_WARNINGS = Shared(without_vmap_warnings)
# cuDNN has no backward pass of a recurrent layer in eval mode.
_WITHOUT_CUDNN = Shared(lambda: torch.backends.cudnn.flags(enabled=False))
# Compiled code calls no hooks and has no double backward.
_EAGER = Shared(lambda: torch.compiler.set_stance("force_eager"))


def device_of(module: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer; the CPU if there is none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name, each once.

    Examples
    --------
    >>> list(trainable_parameters(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[nn.Module]:
    """Put ``module`` in eval mode with autograd enabled; restore its state on exit.

    On exit, also by an exception, the training flag of every submodule and
    ``requires_grad`` of every parameter are restored. Raise for modules whose output
    for one sample depends on the other samples of the batch even in eval mode.

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
    try:
        module.eval()
        # An enclosing autocast caches casts of the weights, even if the weights change.
        torch.clear_autocast_cache()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for m in module.modules():
                if isinstance(m, nn.RNNBase):
                    stack.enter_context(_WITHOUT_CUDNN)
                if is_compiled(m):
                    stack.enter_context(_EAGER)
            yield module
    finally:
        for m, training in modes:
            m.training = training
        for p, requires_grad in flags:
            p.requires_grad_(requires_grad)
        torch.clear_autocast_cache()


def _refuse_batch_statistics(module):
    for name, m in module.named_modules():
        if isinstance(m, BATCH_NORM) and m.running_mean is None:
            raise InvalidInputError(
                f"The layer {name!r} ({type(m).__name__}) keeps no running statistics, "
                "so a sample's loss depends on its batch and the gradient of one "
                "sample is not defined. Build it with track_running_stats=True."
            )


def one_per_sample(losses, y):
    """Return the losses, (B,); raise if the user's function has reduced them.

    The gradient of a mean over the batch would depend on the size of a chunk.
    """
    if losses.shape != (len(y),):
        raise InvalidInputError(
            f"The loss function returned a tensor of shape {tuple(losses.shape)} for "
            f"{len(y)} samples. It must return one loss per sample, of shape "
            f"({len(y)},), as the losses of torch do with reduction='none'."
        )
    return losses


def sample_losses(net, y_pred, y_true):
    """Return the loss of each sample, (B,), by the net's own ``get_loss``.

    ``get_loss`` includes what skorch adds to the criterion (the logarithm before
    ``NLLLoss``) and the overrides of a subclass.
    """
    criterion = net.criterion_
    if not hasattr(criterion, "reduction"):
        raise InvalidInputError(
            f"The criterion {type(criterion).__name__} has no attribute 'reduction', "
            "so it cannot give one loss per sample. Use a torch.nn loss such as "
            "CrossEntropyLoss, or add a `reduction` to yours that supports 'none'."
        )
    before = criterion.reduction
    try:
        criterion.reduction = "none"
        losses = net.get_loss(y_pred, y_true, training=True)  # (B,) or (B, ...)
    finally:
        criterion.reduction = before
    if losses.ndim == 0 or len(losses) != len(y_true):
        raise InvalidInputError(
            f"The criterion {type(criterion).__name__} returned a loss of shape "
            f"{tuple(losses.shape)} for {len(y_true)} samples with reduction='none'. "
            "It must return one loss per sample."
        )
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses  # (B,)


class LossModule(nn.Module):
    """Module whose output is the losses, for ``torch.func.functional_call``.

    ``losses(x, y)`` runs the module, whose parameters have the prefix ``"module."``.
    The losses depend on the swapped parameters, too: they may contain a penalty.
    """

    def __init__(self, module: nn.Module, losses: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.module = module
        self.losses = losses

    def forward(self, x, y):
        return self.losses(x, y)
