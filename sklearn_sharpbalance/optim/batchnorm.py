"""Normalisation layers whose running statistics stand still for a while."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["frozen_batch_statistics"]


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
        a global forward hook.

    Notes
    -----
    A layer takes part if it has a true attribute ``track_running_stats``, as all
    batch and instance norms of torch have; a layer of your own can follow that.

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
            _freeze_when_called(undo)
        else:
            for layer in module.modules():
                _freeze(layer, undo)
        yield


def _freeze(layer: nn.Module, undo: ExitStack) -> None:
    if not (layer.training and getattr(layer, "track_running_stats", False)):
        return
    frozen: dict[str, bool | None]
    if isinstance(layer, _InstanceNorm):
        # It updates its buffers whenever it has any, whatever track_running_stats says.
        frozen = {"running_mean": None, "running_var": None}
    else:
        frozen = {"track_running_stats": False}
    for name, value in frozen.items():
        undo.callback(setattr, layer, name, getattr(layer, name))
        setattr(layer, name, value)


def _freeze_when_called(undo: ExitStack) -> None:
    # The hook is global, but members may train in threads side by side.
    owner = threading.get_ident()
    seen: set[nn.Module] = set()

    def hook(module: nn.Module, args: tuple) -> None:
        if module in seen or threading.get_ident() != owner:
            return
        # The whole tree at the first call: replicas of DataParallel run in threads
        # of their own, and later calls cost one look into the set.
        for layer in module.modules():
            if layer not in seen:
                seen.add(layer)
                _freeze(layer, undo)

    undo.callback(register_module_forward_pre_hook(hook).remove)
