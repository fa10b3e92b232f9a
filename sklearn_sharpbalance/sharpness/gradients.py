"""Sharpness as the squared norm of the gradient of a sample's loss."""

from functools import partial

import torch
from torch.nn.utils.parametrize import is_parametrized

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_optional_numbers
from sklearn_sharpbalance.autodiff.losses import sample_losses
from sklearn_sharpbalance.autodiff.per_sample import (
    check_method,
    per_sample_squared_norms,
)
from sklearn_sharpbalance.autodiff.rows import Rows
from sklearn_sharpbalance.autodiff.state import evaluation_mode
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.sharpness.base import SharpnessScorer, as_array

__all__ = [
    "FisherTraceScorer",
    "LastLayerGradientScorer",
    "fisher_trace",
    "last_layer_gradient",
]


def fisher_trace(net, X, y, *, method="auto", chunk_size=None):
    r"""Return the trace of each sample's empirical Fisher matrix.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised skorch net.
    X : array, tensor, dict of those, or Dataset
    y : array or tensor of shape (N,)
    method : {"auto", "layer_rules", "vmap", "loop"}, default="auto"
    chunk_size : int, default=None
        See :func:`~sklearn_sharpbalance.autodiff.per_sample_squared_norms`.

    Returns
    -------
    tensor of shape (N,)

    Notes
    -----
    With the observed label the matrix is
    :math:`\nabla_w \ell_n \nabla_w \ell_n^\top`, and its trace
    :math:`\|\nabla_w \ell(f_w(x_n), y_n)\|_2^2`.

    Examples
    --------
    A softmax regression has the trace :math:`\|p - e_y\|^2 (\|x\|^2 + 1)`; here
    ``p`` is ``(1/2, 1/2)`` and ``x`` is ``(1, 2)``.

    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear, module__in_features=2, module__out_features=2,
    ...     criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> _ = net.module_.weight.data.zero_(), net.module_.bias.data.zero_()
    >>> fisher_trace(net, torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    tensor([3.0000])
    """
    return per_sample_squared_norms(
        net.module_,
        partial(sample_losses, net),
        X,
        y,
        forward=net.infer,
        method=method,
        chunk_size=chunk_size,
    )


def last_layer_gradient(net, X, y, *, method="auto", chunk_size=None):
    """Return the squared norm of each sample's gradient in the last layer.

    Parameters and return value are those of :func:`fisher_trace`.

    Notes
    -----
    The last layer is the last one to be called that has trainable parameters of its
    own. No gradient flows further back, so the cost is that of a forward pass. For a
    linear layer on features ``h`` the value is ``||dloss/dlogits||^2 (||h||^2 + 1)``.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear, module__in_features=2, module__out_features=2,
    ...     criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> X, y = torch.ones(3, 2), torch.tensor([0, 1, 0])
    >>> torch.allclose(last_layer_gradient(net, X, y), fisher_trace(net, X, y))
    True
    """
    module = net.module_
    with evaluation_mode(module):
        x, _ = Rows(X, y, net.device)[:2]
        last = _last_called(module, lambda: net.infer(x))
        trainable = _own_parameters(last)
        module.requires_grad_(False)
        for parameter in trainable:
            parameter.requires_grad_(True)
        return fisher_trace(net, X, y, method=method, chunk_size=chunk_size)


def _own_parameters(layer):
    """Return the trainable parameters of a layer, without those of its children.

    A parametrized layer stores the parameters behind its weight in a child module.
    """
    own = list(layer.parameters(recurse=False))
    if is_parametrized(layer):
        own += layer.parametrizations.parameters()
    return [p for p in own if p.requires_grad]


def _last_called(module, run):
    """Return the submodule with own trainable parameters whose call ends last."""
    called = []
    handles = [
        m.register_forward_hook(lambda m, args, output: called.append(m))
        for m in module.modules()
        if _own_parameters(m)
    ]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise InvalidInputError(
            f"{type(module).__name__} calls no layer with trainable parameters, so "
            "there is no last layer. Unfreeze one, or use sharpness='loss'."
        )
    return called[-1]


class _GradientScorer(SharpnessScorer):
    """Base class of scorers by squared gradient norms."""

    degree = 2

    def __init__(self, method="auto", chunk_size=None):
        self.method = method
        self.chunk_size = chunk_size

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        super().check()
        check_method(self.method)
        check_optional_numbers(POSITIVE_INTEGER, chunk_size=self.chunk_size)


class FisherTraceScorer(_GradientScorer):
    """Trace of the per-sample empirical Fisher matrix, the score of SharpBalance.

    Parameters
    ----------
    method : {"auto", "layer_rules", "vmap", "loop"}, default="auto"
        How to compute the gradient norms; "auto" uses the fastest that is correct.
    chunk_size : int, default=None
        Samples at a time; halved when memory runs out. None chooses a size.

    See Also
    --------
    fisher_trace : The function behind it.

    References
    ----------
    .. [1] H. Lu et al., "Sharpness-diversity tradeoff: improving flat ensembles with
       SharpBalance", NeurIPS 2024.

    Examples
    --------
    >>> FisherTraceScorer().degree
    2
    """

    def score_samples(self, net, X, y):
        """Return the squared gradient norm of each sample; see the base class."""
        scores = fisher_trace(net, X, y, method=self.method, chunk_size=self.chunk_size)
        return as_array(scores)


class LastLayerGradientScorer(_GradientScorer):
    """Squared gradient norm in the last layer, at the cost of a forward pass.

    Parameters
    ----------
    method : {"auto", "layer_rules", "vmap", "loop"}, default="auto"
    chunk_size : int, default=None
        As in :class:`FisherTraceScorer`.

    See Also
    --------
    last_layer_gradient : The function behind it.

    Examples
    --------
    >>> LastLayerGradientScorer(chunk_size=64)
    LastLayerGradientScorer(chunk_size=64)
    """

    def score_samples(self, net, X, y):
        """Return each sample's squared gradient norm in the last layer."""
        scores = last_layer_gradient(
            net, X, y, method=self.method, chunk_size=self.chunk_size
        )
        return as_array(scores)
