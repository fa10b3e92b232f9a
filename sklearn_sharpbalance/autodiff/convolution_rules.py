"""The layer rule for convolutions, which chooses one of the algorithms.

The factors are ``x`` (B, C, T_in), ``g`` (B, Q, T_out) and the spatial sizes of both,
with one column for each call of the layer.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sklearn_sharpbalance.autodiff.convolution_algorithms import (
    ALGORITHMS,
    Axis,
    cheapest_algorithm,
    convolution_patches,
)
from sklearn_sharpbalance.autodiff.reductions import (
    position_sum,
    squared_norm,
    summed_outer_squared_norm,
)

__all__ = [
    "convolution_axes",
    "convolution_factors",
    "convolution_squared_norm",
    "convolution_workspace",
]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def convolution_factors(layer, x, g):
    # The sizes stay on the CPU: reading them must not wait for a GPU.
    sizes = torch.tensor([*x.shape[2:], *g.shape[2:]])[:, None]
    return x.to(g.dtype).flatten(2), g.flatten(2), sizes


def convolution_squared_norm(layer, names, x, g, sizes):
    total: Tensor | int = 0
    if "weight" in names:
        calls = list(_calls(layer, x, g, sizes))
        norms = _norms_of_one(*calls[0]) if len(calls) == 1 else _norms_of_sum(calls)
        total = norms.reshape(len(x), layer.groups).sum(1)  # from (B G,)
    if "bias" in names:
        total = total + squared_norm(position_sum(g))
    return total


def convolution_workspace(layer, output):
    """Return how many numbers the cheapest algorithm stores at the same time."""
    axes = convolution_axes(layer, None, output.shape[2:])
    c, q = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    name = cheapest_algorithm(axes, c, q, output.device.type, output.dtype)
    return len(output) * layer.groups * ALGORITHMS[name].workspace(axes, c, q)


def _norms_of_one(axes, x, g):
    """Squared norms of the gradient of one call."""
    c, q = x.shape[1], g.shape[1]
    name = cheapest_algorithm(axes, c, q, x.device.type, x.dtype)
    return ALGORITHMS[name].squared_norms(axes, x, g)


def _norms_of_sum(calls):
    """Squared norms of the sum of the calls' gradients, joined as further positions."""
    patches = [convolution_patches(axes, x.contiguous()) for axes, x, _ in calls]
    gradients = [g.flatten(2) for _, _, g in calls]
    return summed_outer_squared_norm(torch.cat(patches, -1), torch.cat(gradients, -1))


def _calls(layer, x, g, sizes) -> Iterator[tuple[tuple[Axis, ...], Tensor, Tensor]]:
    """Yield axes, x (B G, C, in..) and g (B G, Q, out..) of each call; G groups."""
    dims = len(layer.kernel_size)
    n_in, n_out = sizes[:dims].T.tolist(), sizes[dims:].T.tolist()
    xs = x.split([math.prod(size) for size in n_in], -1)
    gs = g.split([math.prod(size) for size in n_out], -1)
    n_rows = len(x) * layer.groups
    for x, g, size_x, size_g in zip(xs, gs, n_in, n_out):
        x = _pad_unless_zeros(layer, x.reshape(n_rows, -1, *size_x))
        g = g.reshape(n_rows, -1, *size_g)
        yield convolution_axes(layer, x.shape[2:], size_g), x, g


# --- geometry


def convolution_axes(
    layer: Convolution, n_in: Sequence[int] | None, n_out: Sequence[int]
) -> tuple[Axis, ...]:
    """Return the spatial axes of a convolution.

    Parameters
    ----------
    layer : Conv1d, Conv2d or Conv3d
    n_in : sequence of int or None
        Size of the input, padded if the padding is not by zeros. None for the size
        that the outputs read.
    n_out : sequence of int
        Size of the output.

    Returns
    -------
    tuple of Axis

    Examples
    --------
    >>> convolution_axes(torch.nn.Conv1d(1, 1, 3, padding=1), [8], [8])
    (Axis(n_in=8, n_out=8, stride=1, offsets=range(-1, 2)),)
    """
    axes = []
    for i, (before, after) in enumerate(_padding(layer)):
        if layer.padding_mode != "zeros":
            before = after = 0
        stride, dilation = layer.stride[i], layer.dilation[i]
        span = dilation * (layer.kernel_size[i] - 1) + 1
        read = max(1, stride * (n_out[i] - 1) + span - before - after)
        offsets = range(-before, span - before, dilation)
        axes.append(Axis(n_in[i] if n_in else read, n_out[i], stride, offsets))
    return tuple(axes)


def _padding(layer: Convolution) -> list[tuple[int, int]]:
    """Return the padding before and after, for each axis."""
    if not isinstance(layer.padding, str):
        return [(p, p) for p in layer.padding]
    totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
    if layer.padding == "valid":
        totals = [0] * len(totals)
    return [(total // 2, total - total // 2) for total in totals]


def _pad_unless_zeros(layer, x):
    if layer.padding_mode == "zeros":
        return x
    sides = [side for pair in reversed(_padding(layer)) for side in pair]
    return F.pad(x, sides, mode=layer.padding_mode)
