r"""Squared norm of each sample's gradient of one layer, without the gradient itself.

A layer sees the input :math:`x` and, in the backward pass, the gradient :math:`g` of
the loss in its output. Both suffice: the weight of a linear map has the gradient
:math:`\sum_t g_t x_t^\top` over the positions :math:`t` (time steps, pixels) of a
sample, and

.. math:: \Big\|\sum_t g_t x_t^\top\Big\|_F^2
          = \sum_{t, t'} \langle g_t, g_{t'} \rangle \langle x_t, x_{t'} \rangle .

A rule has two steps. ``factors`` brings what a layer saw into a form whose *last*
axis counts positions; the factors of a layer that is called several times are joined
along that axis, because its gradient is the sum over all positions of all calls.
``squared_norm`` turns the factors into one number per sample. ``refusal`` says why a
certain layer has no rule after all, and ``workspace`` how large its factors are beyond
what the layer saw.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

__all__ = ["RULES", "Rule", "summed_outer_squared_norm"]


class Rule(NamedTuple):
    """How a kind of layer gives squared gradient norms; see the module's text."""

    factors: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, ...]]
    squared_norm: Callable[..., Tensor]
    refusal: Callable[[nn.Module], str | None] = lambda layer: None
    workspace: Callable[[nn.Module, Tensor], int] = lambda layer, output: 0


def squared_norm(x: Tensor) -> Tensor:
    """Squared norm over all axes but the first, in float32 at least; (B,)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=dtype).square()


def summed_outer_squared_norm(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared norm of :math:`\sum_t a_t b_t^\top` for each pair of a batch.

    Parameters
    ----------
    a : tensor of shape (B, P, T)
    b : tensor of shape (B, Q, T)

    Returns
    -------
    tensor of shape (B,)

    Notes
    -----
    With one position it is the product of the norms. Otherwise the cheaper of the
    two sides of the identity above is taken: the outer products cost ``T P Q``, the
    Gram matrices ``T T (P + Q)``.

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
        grams = torch.bmm(a.mT, a), torch.bmm(b.mT, b)  # (B, T, T) each
        return vecdot(*(m.flatten(1) for m in grams))
    return squared_norm(torch.bmm(a, b.mT))


# --- linear maps: the factors are x (B, G, P, T) and g (B, G, Q, T), G groups ---


def linear_factors(layer, x, g):
    batch = len(x)
    x = x.to(g.dtype).reshape(batch, 1, -1, x.shape[-1]).mT  # (B, 1, P, T)
    return x, g.reshape(batch, 1, -1, g.shape[-1]).mT


def convolution_factors(layer, x, g):
    batch, groups = len(x), layer.groups
    patches = convolution_patches(layer, x.to(g.dtype))  # (B, C k.., T)
    shape = batch, groups, -1, patches.shape[-1]
    return patches.reshape(shape), g.reshape(shape)


def convolution_patches(layer: _ConvNd, x: Tensor) -> Tensor:
    """The window of ``x`` that each output position of a convolution sees.

    Windows are strided views, copied once: ``F.unfold`` costs a kernel per sample on
    a GPU and several times as much on a CPU.
    """
    dims = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padding = convolution_padding(layer)
    x = F.pad(x, padding, mode=mode) if any(padding) else x
    for i in range(dims):
        dilation = layer.dilation[i]
        span = dilation * (layer.kernel_size[i] - 1) + 1
        x = x.unfold(2 + i, span, layer.stride[i])[..., ::dilation]
    # Now (B, C, out.., kernel..). The copy is fast if it keeps the innermost axis.
    out, kernel = range(2, 2 + dims), range(2 + dims, 2 + 2 * dims)
    positions = x.shape[2 : 2 + dims].numel()
    if _is_channels_last(layer):
        return x.permute(0, *out, *kernel, 1).reshape(len(x), positions, -1).mT
    return x.permute(0, 1, *kernel, *out).reshape(len(x), -1, positions)


def _is_channels_last(layer):
    """Whether patches may start with the channels; the same for all calls of a layer.

    A grouped convolution wants its channels outside, to cut them into groups.
    """
    weight = layer.weight
    return (
        layer.groups == 1
        and weight.ndim == 4
        and not weight.is_contiguous()
        and weight.is_contiguous(memory_format=torch.channels_last)
    )


def convolution_padding(layer: _ConvNd) -> list[int]:
    """Padding of a convolution as ``F.pad`` wants it: last axis first, both sides."""
    sides: list[int] = []
    for i in reversed(range(len(layer.kernel_size))):
        if not isinstance(layer.padding, str):
            sides += [layer.padding[i]] * 2
        elif layer.padding == "same":
            total = layer.dilation[i] * (layer.kernel_size[i] - 1)
            sides += [total // 2, total - total // 2]
    return sides  # nothing for "valid"


def convolution_workspace(layer, output):
    """Size of the patches."""
    return output[:, 0].numel() * layer.in_channels * math.prod(layer.kernel_size)


def linear_squared_norm(layer, names, x, g):
    batch, groups, _, positions = x.shape
    if groups == positions == 1:  # the bias is the weight of a constant input
        inputs = squared_norm(x) if "weight" in names else 0
        return (inputs + ("bias" in names)) * squared_norm(g)
    total = 0
    if "weight" in names:
        norms = summed_outer_squared_norm(x.flatten(0, 1), g.flatten(0, 1))  # (B G,)
        total = norms.reshape(batch, groups).sum(1)
    if "bias" in names:
        total = total + squared_norm(position_sum(g))
    return total


def position_sum(x: Tensor) -> Tensor:
    """Sum over the last axis, in float32 at least."""
    if x.shape[-1] == 1:
        return x[..., 0]
    return x.sum(-1, dtype=torch.promote_types(x.dtype, torch.float32))


# --- normalisations: the factors are the gradients of weight and bias (B, C, 1) ---


def channel_norm_factors(normalise):
    """Factors of a layer with one weight per channel, the axis after the batch."""

    def factors(layer, x, g):
        normal, g = (
            z.flatten(2) if z.ndim > 2 else z[..., None]  # (B, C, T)
            for z in (normalise(layer, x), g)
        )
        return vecdot(normal, g)[..., None], position_sum(g)[..., None]

    return factors


def feature_norm_factors(normalise):
    """Factors of a layer whose weight covers the last axes, the features."""

    def factors(layer, x, g):
        size = len(layer.normalized_shape)
        shape = len(x), -1, x.shape[-size:].numel()  # (B, T, C)
        normal, g = (z.reshape(shape).mT for z in (normalise(layer, x), g))
        return vecdot(normal, g)[..., None], position_sum(g)[..., None]

    return factors


def vecdot(a: Tensor, b: Tensor) -> Tensor:
    """Dot products over the last axis, in float32 at least."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    return torch.linalg.vecdot(a.to(dtype), b.to(dtype))


def norm_squared_norm(layer, names, weight_gradient, bias_gradient):
    gradients = {"weight": weight_gradient, "bias": bias_gradient}
    return sum(squared_norm(position_sum(gradients[name])) for name in names)


def batch_norm(layer, x):
    mean, var = layer.running_mean, layer.running_var
    return F.batch_norm(x, mean, var, eps=layer.eps)


def instance_norm(layer, x):
    mean, var = layer.running_mean, layer.running_var  # None: of the sample itself
    return F.instance_norm(
        x, mean, var, use_input_stats=mean is None, momentum=0.0, eps=layer.eps
    )


def group_norm(layer, x):
    return F.group_norm(x, layer.num_groups, eps=layer.eps)


def layer_norm(layer, x):
    return F.layer_norm(x, layer.normalized_shape, eps=layer.eps)


def rms_norm(layer, x):
    return F.rms_norm(x, layer.normalized_shape, eps=layer.eps)


# --- embedding: the factors are the indices (B, 1, T) and g (B, D, T) ---


def embedding_factors(layer, x, g):
    batch = len(x)
    return x.reshape(batch, 1, -1), g.reshape(batch, -1, g.shape[-1]).mT


def embedding_squared_norm(layer, names, index, g):
    if layer.padding_idx is not None:
        g = g * (index != layer.padding_idx)  # that row gets no gradient
    if g.shape[-1] == 1:
        return squared_norm(g)
    # Positions that look up the same row add their gradients; others are orthogonal.
    same = index.mT == index  # (B, T, T)
    return vecdot((g.mT @ g).flatten(1), same.flatten(1))


def embedding_refusal(layer):
    if layer.max_norm is not None:
        return "an Embedding with max_norm rescales its own weight"
    if layer.scale_grad_by_freq:
        return "an Embedding with scale_grad_by_freq depends on the batch"
    return None


_LINEAR = Rule(linear_factors, linear_squared_norm)
_CONVOLUTION = Rule(
    convolution_factors, linear_squared_norm, workspace=convolution_workspace
)
_BATCH_NORM = Rule(channel_norm_factors(batch_norm), norm_squared_norm)
_INSTANCE_NORM = Rule(channel_norm_factors(instance_norm), norm_squared_norm)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _LINEAR,
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.InstanceNorm1d: _INSTANCE_NORM,
    nn.InstanceNorm2d: _INSTANCE_NORM,
    nn.InstanceNorm3d: _INSTANCE_NORM,
    nn.GroupNorm: Rule(channel_norm_factors(group_norm), norm_squared_norm),
    nn.LayerNorm: Rule(feature_norm_factors(layer_norm), norm_squared_norm),
    nn.RMSNorm: Rule(feature_norm_factors(rms_norm), norm_squared_norm),
    nn.Embedding: Rule(embedding_factors, embedding_squared_norm, embedding_refusal),
}
