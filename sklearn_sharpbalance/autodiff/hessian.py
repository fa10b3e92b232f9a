"""Products of vectors with the Hessian of the mean loss in the weights."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sklearn_sharpbalance.autodiff.per_sample import call_module
from sklearn_sharpbalance.autodiff.rows import Rows, map_chunks
from sklearn_sharpbalance.autodiff.state import (
    MATH_ATTENTION,
    device_of,
    evaluation_mode,
    one_per_sample,
    trainable_parameters,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.runtime.torch_internals import WEIGHT_NORM


class HessianOperator:
    r"""Hessian of the mean loss in the trainable parameters, as a linear operator.

    Parameters
    ----------
    module : Module
        Run in eval mode; left unchanged.
    loss_fn : callable
        ``loss_fn(outputs, y)`` returns one loss per sample, of shape (B,).
    X : array, tensor, dict or sequence of those, or Dataset
        N samples.
    y : array or tensor of shape (N,)
    forward : callable, default=None
        Runs the module on a batch; None calls the module.
    chunk_size : int, default=256
        Samples at a time; halved when memory runs out.

    Attributes
    ----------
    parameters : list of Parameter
        In the order of their entries in a vector.
    shape : tuple (P, P)
    dtype : torch.dtype
    device : torch.device

    Notes
    -----
    A product is :math:`Hv = \nabla_w \langle \nabla_w L(w), v \rangle`. It is exact and
    costs about two gradients.

    Examples
    --------
    The loss ``(w x)^2`` has the Hessian ``2 mean(x^2)``.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> loss = lambda outputs, y: outputs[:, 0].square()
    >>> H = HessianOperator(layer, loss, torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    >>> H @ torch.ones(1)
    tensor([10.])
    """

    def __init__(
        self,
        module: nn.Module,
        loss_fn: Callable[[Any, Tensor], Tensor],
        X: Any,
        y: Any,
        *,
        forward: Callable[[Any], Any] | None = None,
        chunk_size: int = 256,
    ):
        self.module = module
        self.loss_fn = loss_fn
        self.forward = partial(call_module, module) if forward is None else forward
        self.chunk_size = chunk_size
        self.device = device_of(module)
        self.rows = Rows(X, y, self.device)
        self.parameters = list(trainable_parameters(module).values())
        if not self.parameters:
            raise InvalidInputError(
                f"{type(module).__name__} has no trainable parameters, so there is no "
                "Hessian. Set requires_grad=True on some parameters."
            )
        self.dtype = self.parameters[0].dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Return (P, P) for P trainable weights."""
        size = sum(p.numel() for p in self.parameters)
        return size, size

    def __matmul__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector (P,), or with the columns of (P, K)."""
        if vector.ndim == 2:
            return torch.stack([self @ column for column in vector.T], dim=1)
        size = self.shape[0]
        if vector.shape != (size,):
            raise InvalidInputError(
                "The vector must have one entry per trainable parameter, shape "
                f"({size},). Got {tuple(vector.shape)}."
            )
        vector = vector.to(self.device, self.dtype)
        pieces = vector.split([p.numel() for p in self.parameters])
        pieces = [piece.view_as(p) for piece, p in zip(pieces, self.parameters)]
        return self._mean_over_chunks(partial(self._summed_product, pieces))

    def to_scipy(self):
        """Return the operator on NumPy vectors, for ``scipy.sparse.linalg.eigsh``."""
        from scipy.sparse.linalg import LinearOperator

        def product(vector):
            return (self @ torch.as_tensor(vector).reshape(-1)).cpu().numpy()

        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return LinearOperator(self.shape, matvec=product, rmatvec=product, dtype=dtype)

    def _mean_over_chunks(self, summed):
        n = len(self.rows)

        def summed_over_chunk(chunk):
            x, y = self.rows[chunk]
            return summed(x, y)

        with evaluation_mode(self.module), MATH_ATTENTION:
            parts = map_chunks(summed_over_chunk, n, self.chunk_size)
            return sum(parts) / n  # (P,)

    def _summed_product(self, pieces, x, y):
        with _PlainWeightNorm():
            loss = one_per_sample(self.loss_fn(self.forward(x), y), y).sum()
        gradients = torch.autograd.grad(
            loss, self.parameters, create_graph=True, materialize_grads=True
        )
        along = sum((g * v).sum() for g, v in zip(gradients, pieces))
        if not along.requires_grad:  # the loss is linear in the weights
            return _flat(pieces).zero_()
        products = torch.autograd.grad(along, self.parameters, materialize_grads=True)
        return _flat(products)


def _flat(tensors):
    """Return all entries of tensors in one vector."""
    return torch.cat([t.reshape(-1) for t in tensors])


class _PlainWeightNorm(TorchFunctionMode):
    """Replace torch's weight norm, whose second derivative is wrong (constant norm)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is WEIGHT_NORM:
            func = _weight_norm
        return func(*args, **(kwargs or {}))


def _weight_norm(v, g, dim=0):
    return v * (g / torch.norm_except_dim(v, 2, dim))
