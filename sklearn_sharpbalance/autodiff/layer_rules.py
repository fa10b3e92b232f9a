r"""Squared norm of each sample's gradient in one layer, without the gradient itself.

The input :math:`x` of a layer and the gradient :math:`g` of the loss in its output are
enough: the weight of a linear map has the gradient :math:`\sum_t g_t x_t^\top` over the
positions :math:`t` (time steps, pixels) of a sample, and

.. math:: \Big\|\sum_t g_t x_t^\top\Big\|_F^2
          = \sum_{t, t'} \langle g_t, g_{t'} \rangle \langle x_t, x_{t'} \rangle .

A rule has two steps. ``factors`` converts :math:`x` and :math:`g` into tensors whose
*last* axis is the position; the factors of a layer that is called several times are
concatenated along that axis, because its gradient is the sum over all positions of all
calls. ``squared_norm`` turns the factors into one number per sample.

``workspace`` returns how many numbers the two steps store in addition to :math:`x` and
:math:`g`. ``input_gradient`` computes the gradient in the layer's input from :math:`g`,
where that is faster than autograd.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rule(NamedTuple):
    """Squared gradient norms of one type of layer; see the docstring of the module."""

    factors: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, ...]]
    squared_norm: Callable[..., Tensor]
    workspace: Callable[[nn.Module, Tensor], int] = lambda layer, output: 0
    input_gradient: Callable[[nn.Module, Tensor], Tensor] | None = None


# --- sums and norms in float32 at least, without copies in that precision


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum numbers of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


def squared_norm(x: Tensor) -> Tensor:
    """Return squared norms (B,) over all axes but the first, in float32 at least."""
    rows = x.flatten(1) if x.ndim > 1 else x[:, None]  # (B, size of a row)
    return torch.linalg.vector_norm(rows, dim=1, dtype=wide(x.dtype)).square()


def position_sum(x: Tensor) -> Tensor:
    """Return the sum over the last axis, in float32 at least."""
    if x.shape[-1] == 1:
        return x[..., 0]
    return x.sum(-1, dtype=wide(x.dtype))


def vecdot(a: Tensor, b: Tensor) -> Tensor:
    """Return dot products over the last axis, summed in float32 at least.

    Low-precision factors are multiplied without a cast: the products are as precise as
    the factors, and a cast would copy both at twice the size.
    """
    product = a * b
    return product.sum(-1, dtype=wide(product.dtype))


def summed_outer_squared_norm(a: Tensor, b: Tensor) -> Tensor:
    r"""Return the squared norm of :math:`\sum_t a_t b_t^\top` for each pair of a batch.

    ``a`` is (B, P, T) and ``b`` is (B, Q, T). With one position it is the product of
    the squared norms. Otherwise it is the cheaper side of the equation at the top of
    this module: the outer products cost ``T P Q``, the Gram matrices ``T T (P + Q)``.

    Examples
    --------
    >>> a, b = torch.ones(1, 2, 3), torch.ones(1, 1, 3)
    >>> summed_outer_squared_norm(a, b)  # the matrix is [[3], [3]]
    tensor([18.0000])
    """
    (_, p, t), q = a.shape, b.shape[1]
    if t == 1:
        return squared_norm(a) * squared_norm(b)
    if t * (p + q) < p * q:
        left, right = (torch.bmm(z.mT, z).flatten(1) for z in (a, b))  # (B, T T)
        return vecdot(left.to(wide(left.dtype)), right)
    return squared_norm(torch.bmm(a, b.mT))


# --- linear maps: the factors are x (B, P, T) and g (B, Q, T) ---


def linear_factors(layer, x, g):
    batch = len(x)
    x = x.to(g.dtype).reshape(batch, -1, x.shape[-1]).mT  # (B, P, T)
    return x, g.reshape(batch, -1, g.shape[-1]).mT


def linear_squared_norm(layer, names, x, g):
    if x.shape[-1] == 1:
        inputs: Tensor | int = 0
        if "weight" in names:
            inputs = squared_norm(x)
        if "bias" in names:
            inputs = inputs + 1  # the bias is the weight of a constant input
        return inputs * squared_norm(g)
    total: Tensor | int = 0
    if "weight" in names:
        total = summed_outer_squared_norm(x, g)  # (B,)
    if "bias" in names:
        total = total + squared_norm(position_sum(g))
    return total


# --- convolutions: linear maps of windows of x; the factors are each row of the windows
# (B, P, T), which one row of the kernel reads, and g (B, Q, T) ---


def convolution_factors(layer, x, g):
    return *window_rows(layer, x.to(g.dtype)), g.flatten(2)


def convolution_squared_norm(layer, names, *factors):
    *rows, g = factors
    total: Tensor | int = 0
    if "weight" in names:
        by_group = (len(g) * layer.groups, -1, g.shape[-1])  # (B G, P / G, T)
        by_row = [
            summed_outer_squared_norm(row.reshape(by_group), g.reshape(by_group))
            for row in rows
        ]
        total = torch.stack(by_row).sum(0).reshape(len(g), layer.groups).sum(1)
    if "bias" in names:
        total = total + squared_norm(position_sum(g))
    return total


def convolution_workspace(layer, output):
    """Return the sizes of the windows' rows and of the smaller of the two products."""
    n_positions = output.shape[2:].numel()
    row = layer.in_channels * math.prod(layer.kernel_size[1:] or layer.kernel_size)
    # With stride 1 all rows are views of one copy.
    n_copies = 1 if layer.stride[0] == 1 else layer.stride[0] + layer.kernel_size[0]
    gradient = row * layer.out_channels // layer.groups
    grams = 2 * layer.groups * n_positions**2
    return len(output) * (n_copies * n_positions * row + min(gradient, grams))


def window_rows(layer, x: Tensor) -> list[Tensor]:
    """Return each row of the windows of ``x`` that a convolution reads; (B, P, T) each.

    Windows along all axes but the first one are strided views, which are copied once:
    ``F.unfold`` launches a kernel for each sample on a GPU and is several times slower
    on a CPU. With stride 1 the rows of the windows are views of that copy. The entries
    of a row are ordered by group, kernel entry and channel.
    """
    x = _padded(layer, x)
    axes = list(zip(layer.kernel_size, layer.stride, layer.dilation))
    if len(axes) == 1:  # a signal is an image of one row
        x, axes = x[:, :, None], [(1, 1, 1), *axes]
    dims = len(axes)
    for i in range(1, dims):
        x = _windows(x, 2 + i, *axes[i])
    x = x.unflatten(1, (layer.groups, -1))  # (B, G, C, rows, out.., kernel..)
    out, kernel = range(4, 3 + dims), range(3 + dims, 2 + 2 * dims)
    # The copy is fast if the innermost axis stays last.
    if x.stride(2) == 1:  # channels-last
        x = x.permute(0, 3, *out, 1, *kernel, 2).flatten(1 + dims).contiguous()
        rows = _windows(x, 1, *axes[0]).unbind(-1)  # (B, T.., P) each
        return [row.flatten(1, dims).mT for row in rows]
    x = x.permute(0, 1, *kernel, 2, 3, *out).flatten(1, 1 + dims).contiguous()
    rows = _windows(x, 2, *axes[0]).unbind(-1)  # (B, P, T..) each
    return [row.flatten(2) for row in rows]


def _windows(x, axis, size, stride, dilation):
    """Return a view with one more axis: the entries of each window along an axis."""
    return x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]


def _padded(layer, x):
    """Return the input with the padding of a convolution."""
    sides: list[int] = []  # before and after, from the last axis to the first
    if layer.padding == "same":
        for d, k in zip(reversed(layer.dilation), reversed(layer.kernel_size)):
            total = d * (k - 1)
            sides += [total // 2, total - total // 2]
    elif layer.padding != "valid":
        for p in reversed(layer.padding):
            sides += [p, p]
    if not any(sides):
        return x
    mode = layer.padding_mode
    return F.pad(x, sides, mode="constant" if mode == "zeros" else mode)


# --- normalisations: the factors are the gradients of weight and bias (B, C, 1) ---


def channel_norm_factors(normalise):
    """Return the factors of a layer with one weight per channel (axis 1)."""

    def factors(layer, x, g):
        normal, g = (
            z.flatten(2) if z.ndim > 2 else z[..., None]  # (B, C, T)
            for z in (normalise(layer, x), g)
        )
        return vecdot(normal, g)[..., None], position_sum(g)[..., None]

    return factors


def feature_norm_factors(normalise):
    """Return the factors of a layer whose weight has the shape of the last axes."""

    def factors(layer, x, g):
        size = len(layer.normalized_shape)
        shape = len(x), -1, x.shape[-size:].numel()  # (B, T, C)
        normal, g = (z.reshape(shape).mT for z in (normalise(layer, x), g))
        return vecdot(normal, g)[..., None], position_sum(g)[..., None]

    return factors


def norm_squared_norm(layer, names, weight_gradient, bias_gradient):
    gradients = {"weight": weight_gradient, "bias": bias_gradient}
    return sum(squared_norm(position_sum(gradients[name])) for name in names)


def batch_norm(layer, x):
    return F.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps)


def batch_norm_input_gradient(layer, g):
    """Scale the channels, as the forward pass with fixed statistics does.

    On a GPU autograd loses the memory format here: its own kernel takes six times as
    long, and the preceding convolution must copy the gradient twice.
    """
    mean = torch.zeros_like(layer.running_mean)
    return F.batch_norm(g, mean, layer.running_var, layer.weight, eps=layer.eps)


def group_norm(layer, x):
    return F.group_norm(x, layer.num_groups, eps=layer.eps)


def layer_norm(layer, x):
    return F.layer_norm(x, layer.normalized_shape, eps=layer.eps)


def rms_norm(layer, x):
    return F.rms_norm(x, layer.normalized_shape, eps=layer.eps)


_LINEAR = Rule(linear_factors, linear_squared_norm)
_CONVOLUTION = Rule(
    convolution_factors, convolution_squared_norm, workspace=convolution_workspace
)
_BATCH_NORM = Rule(
    channel_norm_factors(batch_norm),
    norm_squared_norm,
    input_gradient=batch_norm_input_gradient,
)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _LINEAR,
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.GroupNorm: Rule(channel_norm_factors(group_norm), norm_squared_norm),
    nn.LayerNorm: Rule(feature_norm_factors(layer_norm), norm_squared_norm),
    nn.RMSNorm: Rule(feature_norm_factors(rms_norm), norm_squared_norm),
}
