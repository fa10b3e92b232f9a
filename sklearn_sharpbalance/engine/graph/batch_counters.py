"""Count the batches of BatchNorm on the host while a step is captured."""

from torch import nn

from sklearn_sharpbalance.runtime.torch_internals import BATCH_NORM

__all__ = ["BatchCounters"]


class BatchCounters:
    """Removes the batch counters of BatchNorm from the step.

    They cost a kernel per layer and pass, and only ``momentum=None`` uses them.

    Parameters
    ----------
    module : nn.Module
        Changed in place until :meth:`close`.
    """

    def __init__(self, module: nn.Module):
        # InstanceNorm has such a counter, too, but does not use it.
        self.kept = [
            (layer, layer.num_batches_tracked)
            for layer in module.modules()
            if isinstance(layer, BATCH_NORM)
            and layer.num_batches_tracked is not None
            and layer.momentum is not None
        ]
        self.n_passes = 0
        self.open()

    def open(self) -> None:
        """Remove the counters from the layers."""
        for layer, _ in self.kept:
            layer.num_batches_tracked = None

    def close(self) -> None:
        """Restore the counters, and add the passes since :meth:`open`."""
        for layer, counter in self.kept:
            # A module may keep a layer in evaluation mode while it trains.
            passes = self.n_passes if layer.training else 0
            layer.num_batches_tracked = counter.add_(passes)
        self.n_passes = 0
