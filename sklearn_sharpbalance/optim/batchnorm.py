"""Freeze the running statistics of normalisation layers for a while."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from sklearn_sharpbalance.runtime.torch_internals import INSTANCE_NORM, is_compiled

UNTRACEABLE = "freeze_norms=True hooks into every call; pass freeze_norms=module"


@contextmanager
def frozen_batch_statistics(module: nn.Module | None = None) -> Iterator[None]:
    """Do not update running statistics inside the ``with`` block.

    Layers in training mode still normalise with the statistics of the batch; their
    ``running_mean``, ``running_var`` and ``num_batches_tracked`` do not change. Layers
    in evaluation mode are not affected.

    Parameters
    ----------
    module : nn.Module, default=None
        Freeze the layers of this module. That needs no hook, so it works with
        ``torch.compile`` and with the capture of a CUDA graph. None freezes the layers
        of any module that this thread calls inside the block, by a global forward
        hook. The hook sees a compiled module, but no module that a compiled
        *function* calls.

    Notes
    -----
    A layer is frozen if it has a true attribute ``track_running_stats``, as all batch
    and instance norms of torch have; a layer of your own can define it too. The power
    iteration of a spectral norm is not frozen: it makes a step in every pass in
    training mode.

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
            hook = _CallHook(undo)
            undo.callback(hook.close)
            hook.register()
        else:
            for layer in module.modules():
                _freeze(layer, undo)
        yield


def _freeze(layer: nn.Module, undo: ExitStack) -> bool:
    """Freeze a layer; return False if it must be visited again in training mode."""
    if not getattr(layer, "track_running_stats", False):
        return True
    if not layer.training:
        return False
    frozen: dict[str, bool | None]
    if isinstance(layer, INSTANCE_NORM):
        # It updates its buffers if it has any, even if track_running_stats is False.
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
        self.owner = threading.get_ident()  # members may train in parallel threads
        self.seen: set[nn.Module] = set()
        # Dynamo would trace the hook, and fails on the set of modules.
        self.function = _untraced(self)
        self.handle: RemovableHandle | None = None

    def register(self) -> None:
        self.handle = register_module_forward_pre_hook(self.function)

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()

    def close(self) -> None:
        self.remove()
        self.seen.clear()  # the hook is part of a cycle that keeps the modules alive

    def __call__(self, module: nn.Module, args: tuple) -> None:
        if threading.get_ident() != self.owner:
            return
        compiled = is_compiled(module)
        # The layers of a compiled module do not call the hook when they change to
        # training mode.
        if module not in self.seen or compiled:
            # All layers at the first call, because replicas of DataParallel run in
            # their own threads; later calls cost one look into the set.
            for layer in module.modules():
                if layer not in self.seen and _freeze(layer, self.undo):
                    self.seen.add(layer)
        if compiled:
            self.pause(module)

    def pause(self, module: nn.Module) -> None:
        """Remove the hook while the module runs, so that its layers are compiled."""

        def resume(*call: Any) -> None:
            end.remove()
            self.register()

        self.remove()
        end = module.register_forward_hook(_untraced(resume), always_call=True)
        self.undo.callback(end.remove)


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    return torch.compiler.disable(hook, reason=UNTRACEABLE)
