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

``refusal`` returns the reason if a rule does not apply to a certain layer, and
``workspace`` how many numbers the two steps store in addition to :math:`x` and
:math:`g`. ``input_gradient`` computes the gradient in the layer's input from :math:`g`,
where that is faster than autograd.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sklearn_sharpbalance.autodiff.convolution_rules import (
    convolution_factors,
    convolution_squared_norm,
    convolution_workspace,
)
from sklearn_sharpbalance.autodiff.reductions import (
    position_sum,
    squared_norm,
    summed_outer_squared_norm,
    vecdot,
)

__all__ = ["RULES", "Rule", "squared_norm"]


class Rule(NamedTuple):
    """Squared gradient norms of one type of layer; see the docstring of the module."""

    factors: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, ...]]
    squared_norm: Callable[..., Tensor]
    refusal: Callable[[nn.Module], str | None] = lambda layer: None
    workspace: Callable[[nn.Module, Tensor], int] = lambda layer, output: 0
    input_gradient: Callable[[nn.Module, Tensor], Tensor] | None = None


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
    mean, var = layer.running_mean, layer.running_var
    return F.batch_norm(x, mean, var, eps=layer.eps)


def batch_norm_input_gradient(layer, g):
    """Scale the channels, as the forward pass with fixed statistics does.

    On a GPU autograd loses the memory format here: its own kernel takes six times as
    long, and the preceding convolution must copy the gradient twice.
    """
    mean = torch.zeros_like(layer.running_mean)
    return F.batch_norm(g, mean, layer.running_var, layer.weight, eps=layer.eps)


def instance_norm(layer, x):
    mean, var = layer.running_mean, layer.running_var  # None: statistics of the sample
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
    # Gradients of positions with the same index add up; others are orthogonal.
    same = index.mT == index  # (B, T, T)
    return vecdot((g.mT @ g).flatten(1), same.flatten(1))


def embedding_refusal(layer):
    if layer.max_norm is not None:
        return "an Embedding with max_norm rescales its own weight"
    if layer.scale_grad_by_freq:
        return "an Embedding with scale_grad_by_freq depends on the batch"
    return None


def embedding_workspace(layer, output):
    """Return the size of two matrices of positions by positions."""
    return 2 * len(output) * output.shape[1:-1].numel() ** 2


_LINEAR = Rule(linear_factors, linear_squared_norm)
_CONVOLUTION = Rule(
    convolution_factors, convolution_squared_norm, workspace=convolution_workspace
)
_BATCH_NORM = Rule(
    channel_norm_factors(batch_norm),
    norm_squared_norm,
    input_gradient=batch_norm_input_gradient,
)
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
    nn.Embedding: Rule(
        embedding_factors,
        embedding_squared_norm,
        refusal=embedding_refusal,
        workspace=embedding_workspace,
    ),
}
