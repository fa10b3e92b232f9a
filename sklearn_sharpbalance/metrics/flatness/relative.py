"""Relative flatness of the last layer (Petzka et al.)."""

from functools import partial

import torch
from torch import nn

from sklearn_sharpbalance.autodiff import evaluation_mode
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics.flatness._frame import (
    mean_over_members,
    measure_members,
)


def _last_layer(member, module):
    """Return the linear layer that is called last."""
    called = []
    handles = [
        m.register_forward_hook(lambda m, args, out: called.append(m))
        for m in module.modules()
        if isinstance(m, nn.Linear)
    ]
    try:
        with torch.no_grad():
            member.net.infer(member.rows[:1][0])
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise InvalidInputError(
            f"{type(module).__name__} calls no nn.Linear layer, but relative flatness "
            "is defined for such a layer. Use another metric, such as hessian_trace."
        )
    return called[-1]


def _features_and_logits(member, layer, x, y):
    """Return input and output of the layer, and losses as a function of that output."""
    seen = []

    def cut(layer, args, kwargs, output):
        # Differentiate only from the layer's output to the loss.
        leaf = output.detach().requires_grad_(True)
        features = args[0] if args else kwargs["input"]
        seen.append((features.detach(), leaf))
        return leaf

    handle = layer.register_forward_hook(cut, with_kwargs=True)
    try:
        losses = member.losses(x, y)  # (B,)
    finally:
        handle.remove()
    features, logits = seen[-1]
    if len(seen) != 1 or features.ndim != 2:
        raise InvalidInputError(
            "Relative flatness needs a layer that is called once with one feature "
            f"vector per sample; this one got {len(seen)} calls, the last with shape "
            f"{tuple(features.shape)}. Use another metric, such as hessian_trace."
        )
    return features, logits, losses


def _sample_flatness(member, layer, x, y):
    """Return ``|phi|^2 tr(W W^T H)`` of each sample, H the Hessian in the logits."""
    features, logits, losses = _features_and_logits(member, layer, x, y)
    slope = torch.autograd.grad(losses.sum(), logits, create_graph=True)[0]  # (B, C)
    total = torch.zeros_like(losses).detach()
    if slope.requires_grad:  # else the loss is linear in the logits
        gram = (layer.weight @ layer.weight.T).detach()  # (C, C): <w_s, w_s'>
        for s, row in enumerate(gram):
            column = torch.autograd.grad(
                slope[:, s].sum(), logits, retain_graph=True, materialize_grads=True
            )[0]  # (B, C)
            total = total + column @ row
    return features.square().sum(1) * total


def _flatness(member):
    with evaluation_mode(member.net.module_) as module:
        layer = _last_layer(member, module)
        return member.mean(partial(_sample_flatness, member, layer))


def relative_flatness(
    net, X, y, *, n_samples=None, random_state=None, per_member=False
):
    r"""Relative flatness of the last linear layer; larger is sharper, despite its name.

    H. Petzka et al., "Relative flatness and generalization", NeurIPS 2021.

    Parameters
    ----------
    net, X, y, n_samples, random_state, per_member
        See :func:`fisher_rao_norm`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        Not negative for a loss that is convex in the logits. 0.0 for a loss that is
        linear in them.

    Notes
    -----
    With rows :math:`w_s` of the layer's weight (without the bias) and blocks
    :math:`H_{s,s'}` of the loss's Hessian in them,

    .. math:: \sum_{s,s'} \langle w_s, w_{s'} \rangle\, \mathrm{tr}\, H_{s,s'}
        = \mathbb E\bigl[\|\phi\|^2\, \mathrm{tr}(W W^\top \nabla_z^2 \ell)\bigr]

    for features :math:`\phi` and logits :math:`z = W\phi + b`. The right side needs
    no Hessian in the weights and costs a forward pass. For the cross-entropy it is
    :math:`\mathbb E[\|\phi\|^2 (\sum_s p_s \|w_s\|^2 - \|\sum_s p_s w_s\|^2)]`.
    """
    values = measure_members(
        _flatness, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)
