"""Normalisation layers whose running statistics stand still for a while."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

__all__ = ["frozen_batch_statistics"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
UNTRACEABLE = "freeze_norms=True hooks into every call; pass freeze_norms=module"


@contextmanager
def frozen_batch_statistics(module: nn.Module | None = None) -> Iterator[None]:
    """Leave running statistics alone inside the ``with`` block.

    Layers in training mode still normalise with the statistics of the batch; their
    ``running_mean``, ``running_var`` and ``num_batches_tracked`` do not move. Layers in
    evaluation mode are not affected.

    Parameters
    ----------
    module : nn.Module, default=None
        The layers of this module are frozen at once: nothing is hooked, so it goes
        together with ``torch.compile`` and with the capture of a CUDA graph. None
        freezes the layers of any module that this thread calls inside the block, by
        a global forward hook. It sees a compiled module, but no module that a
        compiled *function* calls.

    Notes
    -----
    A layer takes part if it has a true attribute ``track_running_stats``, as all
    batch and instance norms of torch have; a layer of your own can follow that. The
    power iteration of a spectral norm is not held back: it makes a step in every
    pass in training mode.

    Examples
    --------
    >>> import torch
    >>> norm = torch.nn.BatchNorm1d(2)
    >>> with frozen_batch_statistics(norm):
    ...     _ = norm(torch.tensor([[0.0, 2.0], [2.0, 4.0]]))
    >>> norm.running_mean.tolist(), norm.num_batches_tracked.item()
    ([0.0, 0.0], 0)
    """
    with ExitStack() as undo:
        if module is None:
            _CallHook(undo)
        else:
            for layer in module.modules():
                _freeze(layer, undo)
        yield


def _freeze(layer: nn.Module, undo: ExitStack) -> bool:
    """Freeze a layer; False if it would have to be once it is in training mode."""
    if isinstance(layer, torch.jit.ScriptModule):
        # Its code is fixed: what it writes is taken back.
        for name, buffer in layer.named_buffers(recurse=False):
            if name in STATISTICS:
                undo.callback(buffer.copy_, buffer.clone())
        return True
    if not getattr(layer, "track_running_stats", False):
        return True
    if not layer.training:
        return False
    frozen: dict[str, bool | None]
    if isinstance(layer, _InstanceNorm):
        # It updates its buffers whenever it has any, whatever track_running_stats says.
        frozen = {"running_mean": None, "running_var": None}
    else:
        frozen = {"track_running_stats": False}
    for name, value in frozen.items():
        undo.callback(setattr, layer, name, getattr(layer, name))
        setattr(layer, name, value)
    return True


class _CallHook:
    """A global hook that freezes the layers of each module that is called."""

    def __init__(self, undo: ExitStack) -> None:
        self.undo = undo
        self.owner = threading.get_ident()  # members may train in threads side by side
        self.seen: set[nn.Module] = set()
        # Dynamo would trace what it does, and fails on the set of modules.
        self.function = _untraced(self)
        self.handle = self.register()
        undo.callback(self.close)

    def register(self) -> RemovableHandle:
        return register_module_forward_pre_hook(self.function)

    def close(self) -> None:
        self.handle.remove()
        self.seen.clear()  # it lies in a cycle, and would keep the modules alive

    def __call__(self, module: nn.Module, args: tuple) -> None:
        if threading.get_ident() != self.owner:
            return
        is_compiled = _is_compiled(module)
        # Layers of a compiled one are not heard of when they change to training mode.
        if module not in self.seen or is_compiled:
            # The whole tree at the first call: replicas of DataParallel run in threads
            # of their own, and later calls cost one look into the set.
            for layer in module.modules():
                if layer not in self.seen and _freeze(layer, self.undo):
                    self.seen.add(layer)
        if is_compiled:
            self.step_aside(module)

    def step_aside(self, module: nn.Module) -> None:
        """Leave while the module runs, so that its layers, all frozen, are compiled."""

        def come_back(*call: Any) -> None:
            back.remove()
            self.handle = self.register()

        self.handle.remove()
        back = module.register_forward_hook(_untraced(come_back), always_call=True)
        self.undo.callback(back.remove)


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    return torch.compiler.disable(hook, reason=UNTRACEABLE)


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None
