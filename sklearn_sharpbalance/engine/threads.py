"""Choose the number of threads by the size of a network on a CPU."""

import torch
from torch import nn

from sklearn_sharpbalance.engine.support import meta_module

__all__ = ["choose_threads"]

# Multiplications of a matrix product below which one thread is used. For such networks
# a second thread makes no difference on a quiet machine, and a fit slower if other
# processes use the cores, since threads wait for each other at every product
# (examples/benchmarks/bench_threads.py).
SMALL_PRODUCT = 2**25


def choose_threads(net, batch_size: int, n_members: int = 1) -> int | None:
    """Return 1 if all matrix products of a step are small, else None.

    The choice depends on sizes only, not on the load of the machine: the number of
    threads changes rounding, and equal fits must have equal results.

    Parameters
    ----------
    net : NeuralNetClassifier
    batch_size : int
    n_members : int, default=1
        Number of members in one batched product.
    """
    if torch.device(net.device).type != "cpu":
        return None
    module = meta_module(net)
    if module is None:
        return None
    sizes = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            sizes.append(layer.in_features * layer.out_features)
        elif any(weight.ndim > 1 for weight in layer.parameters(recurse=False)):
            return None  # the cost of a convolution depends on the size of pictures
    largest = max(sizes, default=0) * int(batch_size) * n_members
    return 1 if largest < SMALL_PRODUCT else None
