"""Flatness by the Fisher matrix: the Fisher-Rao norm of the weights, and the trace."""

import torch

from sklearn_sharpbalance.autodiff import evaluation_mode
from sklearn_sharpbalance.autodiff.state import MATH_ATTENTION
from sklearn_sharpbalance.metrics.flatness._members import measure_members
from sklearn_sharpbalance.metrics.flatness._weights import trainable_or_refuse
from sklearn_sharpbalance.sharpness.scorers import fisher_trace

__all__ = ["fisher_rao_norm", "mean_fisher_trace"]


def _radial_derivatives(batches, params, x, y):
    """Return ``<grad_w loss_n, w>`` of each sample, (B,), by two backward passes.

    The gradient of ``sum_n s_n loss_n`` is linear in the shares ``s``. The derivative
    of its product with ``w`` in ``s_n`` is the product of sample n.
    """
    losses = batches.losses(x, y)  # (B,)
    share = torch.ones_like(losses).requires_grad_(True)
    grads = torch.autograd.grad(
        losses, params, share, create_graph=True, materialize_grads=True
    )
    product = sum((g * p.detach()).sum() for g, p in zip(grads, params))
    return torch.autograd.grad(product, share)[0]


def _squared_radial(batches):
    """Return the mean squared product of each batch, (n_batches,)."""
    with evaluation_mode(batches.net.module_) as module, MATH_ATTENTION:
        params = list(trainable_or_refuse(module).values())

        def squares(x, y):
            return _radial_derivatives(batches, params, x, y).square()

        return batches.means(batches.per_sample(squares))


def _traces(batches):
    """Return the mean Fisher trace of each batch, (n_batches,)."""
    trainable_or_refuse(batches.net.module_)
    rows = batches.rows
    return batches.means(fisher_trace(batches.net, rows.X, rows.y))


def fisher_rao_norm(
    net,
    X,
    y,
    *,
    batch_size=128,
    n_batches=None,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Squared Fisher-Rao norm of the weights, a flatness that is scale-invariant.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    batch_size, n_batches, random_state, per_member, return_batches
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray
        Not negative.

    Notes
    -----
    :math:`w^\top F w = \mathbb E[\langle \nabla_w \ell, w \rangle^2]` with the
    observed labels, in eval mode. For a ReLU net without biases and with :math:`L`
    hidden layers it equals :math:`(L+1)^2\, \mathbb E[\langle \partial \ell /
    \partial f, f \rangle^2]`.

    References
    ----------
    .. [1] T. Liang et al., "Fisher-Rao metric, geometry, and complexity of neural
       networks", AISTATS 2019.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=1,
    ...     module__out_features=2, module__bias=False,
    ...     criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> with torch.no_grad():
    ...     _ = net.module_.weight.copy_(torch.tensor([[0.0], [3.0]]).log1p())
    >>> X, y = np.ones((1, 1), dtype=np.float32), np.array([0])
    >>> round(fisher_rao_norm(net, X, y), 4)  # ((4 / 5) log 4)^2
    1.23
    """
    return measure_members(
        _squared_radial,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
    )


def mean_fisher_trace(
    net,
    X,
    y,
    *,
    batch_size=128,
    n_batches=None,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Trace of the empirical Fisher matrix: the mean squared gradient norm.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    batch_size, n_batches, random_state, per_member, return_batches
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray
        Not negative.

    Notes
    -----
    :math:`\frac1N \sum_n \|\nabla_w \ell(f_w(x_n), y_n)\|_2^2`, in eval mode: the mean
    of the score by which SharpBalance selects samples.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=2,
    ...     module__out_features=2, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> with torch.no_grad():
    ...     _ = net.module_.weight.zero_(), net.module_.bias.zero_()
    >>> X, y = np.array([[1, 2]], dtype=np.float32), np.array([0])
    >>> round(mean_fisher_trace(net, X, y), 4)  # |p - e_y|^2 (|x|^2 + 1) = 0.5 * 6
    3.0
    """
    return measure_members(
        _traces,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
    )
