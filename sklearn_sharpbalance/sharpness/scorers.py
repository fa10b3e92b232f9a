"""Sharpness as a sample's loss, its gradient in the weights, or its rise under SAM."""

from contextlib import contextmanager
from functools import partial

import torch
from torch.nn.utils.parametrize import is_parametrized

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    POSITIVE_INTEGER,
    check_numbers,
    check_optional_numbers,
)
from sklearn_sharpbalance.autodiff import (
    Rows,
    evaluation_mode,
    in_chunks,
    map_chunks,
    sample_losses,
    trainable_parameters,
)
from sklearn_sharpbalance.autodiff.per_sample import (
    check_method,
    per_sample_squared_norms,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.runtime.torch_internals import foreach_add_
from sklearn_sharpbalance.sharpness.base import NetScorer, SharpnessScorer


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
    """Return the trainable parameters of a layer, without those of its children."""
    own = list(layer.parameters(recurse=False))
    if is_parametrized(layer):  # the parameters behind its weight are in a child
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


def per_sample_loss(net, X, y, *, chunk_size=512):
    """Return the loss of each sample in eval mode.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised skorch net.
    X : array, tensor, dict of those, or Dataset
    y : array or tensor of shape (N,)
    chunk_size : int, default=512
        Samples at a time; halved when memory runs out.

    Returns
    -------
    tensor of shape (N,)
    """
    rows = Rows(X, y, net.device)

    def losses(part):
        x, targets = rows[part]
        return sample_losses(net, net.infer(x), targets)  # (B,)

    with evaluation_mode(net.module_), torch.no_grad():
        return in_chunks(losses, len(rows), chunk_size)


def loss_rise(net, X, y, *, rho=0.05, chunk_size=512):
    r"""Return the rise of each sample's loss when SAM perturbs the weights.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised skorch net; its weights are restored bit for bit.
    X, y, chunk_size
        As in :func:`per_sample_loss`.
    rho : float, default=0.05
        Length of the perturbation.

    Returns
    -------
    tensor of shape (N,)
        May be negative: a rise of the mean loss can lower the loss of some samples.

    Notes
    -----
    :math:`\ell_n(w + \epsilon) - \ell_n(w)` with one perturbation
    :math:`\epsilon = \rho\, g / \|g\|` for all samples, where :math:`g` is the
    gradient of the mean loss over the *whole* set. A perturbation per mini-batch, as
    in training, would make the score of a sample depend on its mini-batch. All samples
    have the same weight in :math:`g`: the sample weights of an ensemble multiply the
    scores and do not change the perturbation.

    Examples
    --------
    At zero weights ``g`` has the direction ``(-1, 1) x``, so after a step of length
    ``rho`` the logits of ``x = 1`` differ by ``rho * sqrt(2)``.

    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear, module__in_features=1, module__out_features=2,
    ...     module__bias=False, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> _ = net.module_.weight.data.zero_()
    >>> loss_rise(net, torch.ones(1, 1), torch.tensor([0]), rho=1 / 2**0.5)
    tensor([0.6201])
    """
    check_numbers(NON_NEGATIVE, rho=rho)
    if not trainable_parameters(net.module_):
        raise InvalidInputError(
            f"{type(net.module_).__name__} has no trainable parameters, so there are "
            "no weights to move. Unfreeze some, or use sharpness='loss'."
        )
    before = per_sample_loss(net, X, y, chunk_size=chunk_size)  # (N,)
    gradients = _mean_gradients(net, Rows(X, y, net.device), chunk_size)
    with _moved_along(gradients, rho):
        return per_sample_loss(net, X, y, chunk_size=chunk_size) - before


def _mean_gradients(net, rows, chunk_size):
    """Return the gradient of the mean loss, by trainable parameter."""
    params = list(trainable_parameters(net.module_).values())

    def summed(part):
        x, y = rows[part]
        loss = sample_losses(net, net.infer(x), y).sum()
        return torch.autograd.grad(loss, params, materialize_grads=True)

    totals = [torch.zeros_like(p) for p in params]
    with evaluation_mode(net.module_):
        for part in map_chunks(summed, len(rows), chunk_size):
            foreach_add_(totals, part)
    return {p: total / len(rows) for p, total in zip(params, totals)}


@contextmanager
def _moved_along(gradients, rho):
    """Perturb the weights as SAM does; restore weights and ``.grad`` on exit."""
    kept = {p: p.grad for p in gradients}
    try:
        for p, gradient in gradients.items():
            p.grad = gradient
        with SAM(gradients, rho=rho).perturbed(freeze_norms=False):
            yield
    finally:
        for p, gradient in kept.items():
            p.grad = gradient


class _GradientScorer(NetScorer):
    """Base class of scorers by squared gradient norms."""

    degree = 2

    def __init__(self, method="auto", chunk_size=None):
        self.method = method
        self.chunk_size = chunk_size

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        SharpnessScorer.check(self)
        check_method(self.method)
        check_optional_numbers(POSITIVE_INTEGER, chunk_size=self.chunk_size)


class FisherTraceScorer(_GradientScorer):
    """Trace of the per-sample empirical Fisher matrix, the score of SharpBalance.

    The parameters are those of :func:`fisher_trace`.

    References
    ----------
    .. [1] H. Lu et al., "Sharpness-diversity tradeoff: improving flat ensembles with
       SharpBalance", NeurIPS 2024.
    """

    function = fisher_trace


class LastLayerGradientScorer(_GradientScorer):
    """Squared gradient norm in the last layer, at the cost of a forward pass.

    The parameters are those of :func:`last_layer_gradient`.
    """

    function = last_layer_gradient


class LossScorer(NetScorer):
    """Loss of each sample, which measures its difficulty without any curvature.

    The parameters are those of :func:`per_sample_loss`.
    """

    function = per_sample_loss

    def __init__(self, chunk_size=512):
        self.chunk_size = chunk_size


class LossRiseScorer(NetScorer):
    """Rise of each sample's loss under the perturbation of SAM.

    The parameters are those of :func:`loss_rise`.

    References
    ----------
    .. [1] P. Foret et al., "Sharpness-aware minimization for efficiently improving
       generalization", ICLR 2021.
    """

    function = loss_rise

    def __init__(self, rho=0.05, chunk_size=512):
        self.rho = rho
        self.chunk_size = chunk_size

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        super().check()
        check_numbers(NON_NEGATIVE, rho=self.rho)
