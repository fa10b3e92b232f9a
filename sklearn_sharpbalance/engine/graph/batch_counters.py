"""Batch counters of BatchNorm, kept by the host while a step is captured."""

from torch import nn

__all__ = ["BatchCounters"]


class BatchCounters:
    """Takes the batch counters of BatchNorm out of the step: a kernel per layer and
    pass for a number that only ``momentum=None`` ever looks at.

    Parameters
    ----------
    module : nn.Module
        Changed in place until :meth:`close`.
    """

    def __init__(self, module: nn.Module):
        # InstanceNorm has such a counter too, and never counts.
        self.kept = [
            (layer, layer.num_batches_tracked)
            for layer in module.modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            and layer.num_batches_tracked is not None
            and layer.momentum is not None
        ]
        self.n_passes = 0
        self.open()

    def open(self) -> None:
        """Take the counters away from the layers."""
        for layer, _ in self.kept:
            layer.num_batches_tracked = None

    def close(self) -> None:
        """Put the counters back, with the passes that were made meanwhile."""
        for layer, counter in self.kept:
            # A module may leave a layer in evaluation mode where the others train.
            passes = self.n_passes if layer.training else 0
            layer.num_batches_tracked = counter.add_(passes)
        self.n_passes = 0
