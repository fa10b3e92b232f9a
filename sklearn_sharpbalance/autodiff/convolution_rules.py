"""The rule for convolutions: from a layer and what it saw to one of the ways.

The factors are ``x`` (B, C, T_in), ``g`` (B, Q, T_out) and the spatial sizes of both,
one column for each call of the layer.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from sklearn_sharpbalance.autodiff.convolution_ways import (
    WAYS,
    Axis,
    cheapest_way,
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


def convolution_factors(layer, x, g):
    # The sizes stay on the CPU: reading them must not wait for a GPU.
    sizes = torch.tensor([*x.shape[2:], *g.shape[2:]])[:, None]
    return x.to(g.dtype).flatten(2), g.flatten(2), sizes


def convolution_squared_norm(layer, names, x, g, sizes):
    total: Tensor | int = 0
    if "weight" in names:
        calls = list(_calls(layer, x, g, sizes))
        norms = _of_one(*calls[0]) if len(calls) == 1 else _of_several(calls)  # (B G,)
        total = norms.reshape(len(x), layer.groups).sum(1)
    if "bias" in names:
        total = total + squared_norm(position_sum(g))
    return total


def convolution_workspace(layer, output):
    """Numbers that the cheapest way writes at the same time."""
    axes = convolution_axes(layer, None, output.shape[2:])
    c, q = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    way = WAYS[cheapest_way(axes, c, q, output.device.type, output.dtype)]
    return len(output) * layer.groups * way.workspace(axes, c, q)


def _of_one(axes, x, g):
    way = WAYS[cheapest_way(axes, x.shape[1], g.shape[1], x.device.type, x.dtype)]
    return way.squared_norms(axes, x, g)


def _of_several(calls):
    """The gradients of the calls add up, as those of positions do."""
    patches = [convolution_patches(axes, x.contiguous()) for axes, x, _ in calls]
    gradients = [g.flatten(2) for _, _, g in calls]
    return summed_outer_squared_norm(torch.cat(patches, -1), torch.cat(gradients, -1))


def _calls(layer, x, g, sizes) -> Iterator[tuple[tuple[Axis, ...], Tensor, Tensor]]:
    """Axes, x (B G, C, in..) and g (B G, Q, out..) of each call; G groups."""
    dims = len(layer.kernel_size)
    n_in, n_out = sizes[:dims].T.tolist(), sizes[dims:].T.tolist()
    xs, gs = (
        z.split([math.prod(size) for size in n], -1) for z, n in ((x, n_in), (g, n_out))
    )
    for x, g, size_x, size_g in zip(xs, gs, n_in, n_out):
        x, g = (
            z.reshape(len(z) * layer.groups, -1, *size)
            for z, size in ((x, size_x), (g, size_g))
        )
        x = _pad_unless_zeros(layer, x)
        yield convolution_axes(layer, x.shape[2:], size_g), x, g


# --- geometry


def convolution_axes(
    layer: _ConvNd, n_in: Sequence[int] | None, n_out: Sequence[int]
) -> tuple[Axis, ...]:
    """Spatial axes of a convolution.

    Parameters
    ----------
    layer : Conv1d, Conv2d or Conv3d
    n_in : sequence of int or None
        Size of the input, after the padding if that is not by zeros. None stands for
        what the outputs read.
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


def _padding(layer: _ConvNd) -> list[tuple[int, int]]:
    """Padding before and after, for each axis."""
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
