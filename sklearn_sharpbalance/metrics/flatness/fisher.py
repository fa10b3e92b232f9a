"""Flatness by gradients of single samples: Fisher matrix and input curvature."""

from functools import partial

import torch

from sklearn_sharpbalance.autodiff import evaluation_mode
from sklearn_sharpbalance.autodiff.state import MATH_ATTENTION
from sklearn_sharpbalance.metrics.flatness._frame import (
    mean_over_members,
    measure_members,
    trainable_or_refuse,
)
from sklearn_sharpbalance.sharpness import fisher_trace, input_curvature


def _radial_derivatives(member, params, x, y):
    """Return ``<grad_w loss_n, w>`` of each sample, (B,), by two backward passes.

    The gradient of ``sum_n s_n loss_n`` is linear in the weights ``s`` of the samples.
    The derivative of its product with ``w`` in ``s_n`` is the product of sample n.
    """
    losses = member.losses(x, y)  # (B,)
    share = torch.ones_like(losses).requires_grad_(True)
    grads = torch.autograd.grad(
        losses, params, share, create_graph=True, materialize_grads=True
    )
    product = sum((g * p.detach()).sum() for g, p in zip(grads, params))
    return torch.autograd.grad(product, share)[0]


def _squared_radial(member):
    with evaluation_mode(member.net.module_) as module, MATH_ATTENTION:
        params = list(trainable_or_refuse(module).values())
        return member.mean(
            lambda x, y: _radial_derivatives(member, params, x, y).square()
        )


def fisher_rao_norm(net, X, y, *, n_samples=None, random_state=None, per_member=False):
    r"""Squared Fisher-Rao norm of the weights, a flatness that is scale-invariant.

    T. Liang et al., "Fisher-Rao metric, geometry, and complexity of neural
    networks", AISTATS 2019.

    Parameters
    ----------
    n_samples : int or None, default=None
        Number of random samples; None uses all.
    net, X, y, random_state, per_member
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        Not negative.

    Notes
    -----
    :math:`w^\top F w = \mathbb E[\langle \nabla_w \ell, w \rangle^2]` with the
    observed labels, in eval mode. For a ReLU net without biases and with :math:`L`
    hidden layers it equals :math:`(L+1)^2\, \mathbb E[\langle \partial \ell /
    \partial f, f \rangle^2]`.
    """
    values = measure_members(
        _squared_radial, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)


def _mean_trace(member):
    trainable_or_refuse(member.net.module_)
    traces = fisher_trace(member.net, member.rows.X, member.rows.y)  # (N,)
    return traces.double().mean().item()


def mean_fisher_trace(
    net, X, y, *, n_samples=None, random_state=None, per_member=False
):
    r"""Trace of the empirical Fisher matrix: the mean squared gradient norm.

    Parameters
    ----------
    net, X, y, n_samples, random_state, per_member
        See :func:`fisher_rao_norm`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        Not negative.

    Notes
    -----
    :math:`\frac1N \sum_n \|\nabla_w \ell(f_w(x_n), y_n)\|_2^2`, in eval mode: the mean
    of the score by which SharpBalance selects samples.
    """
    values = measure_members(
        _mean_trace, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)


def _mean_curvature(member, **options):
    rows, seed = member.rows, member.seed % 2**32
    values = input_curvature(member.net, rows.X, rows.y, random_state=seed, **options)
    return values.double().mean().item()


def mean_input_curvature(
    net,
    X,
    y,
    *,
    step=1e-3,
    n_directions=10,
    n_samples=None,
    random_state=None,
    per_member=False,
):
    r"""Mean curvature of the loss in the input.

    I. Garg and K. Roy, "Samples with low loss curvature improve data efficiency",
    CVPR 2023.

    Parameters
    ----------
    step, n_directions
        See :func:`sklearn_sharpbalance.sharpness.input_curvature`, whose mean over
        samples this is.
    net, X, y, n_samples, random_state, per_member
        See :func:`fisher_rao_norm`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        Not negative.
    """
    measure = partial(_mean_curvature, step=step, n_directions=n_directions)
    values = measure_members(
        measure, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)
