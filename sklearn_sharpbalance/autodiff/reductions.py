"""Sums and norms in float32 at least, without copies in that precision."""

import torch
from torch import Tensor

__all__ = [
    "norm",
    "position_sum",
    "squared_norm",
    "summed_outer_squared_norm",
    "vecdot",
    "wide",
]


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum numbers of ``dtype``.

    Examples
    --------
    >>> wide(torch.bfloat16)
    torch.float32
    """
    return torch.promote_types(dtype, torch.float32)


def norm(x: Tensor) -> Tensor:
    """Return the norm over all axes but the first, in float32 at least; (B,).

    Examples
    --------
    >>> norm(torch.ones(2, 3, 3, dtype=torch.bfloat16))
    tensor([3., 3.])
    """
    rows = x.flatten(1) if x.ndim > 1 else x[:, None]  # (B, size of a row)
    return torch.linalg.vector_norm(rows, dim=1, dtype=wide(x.dtype))


def squared_norm(x: Tensor) -> Tensor:
    """Return the squared norm over all axes but the first, in float32 at least; (B,).

    Examples
    --------
    >>> squared_norm(torch.ones(2, 3, 4, dtype=torch.bfloat16))
    tensor([12., 12.])
    """
    return norm(x).square()


def position_sum(x: Tensor) -> Tensor:
    """Return the sum over the last axis, in float32 at least.

    Examples
    --------
    >>> position_sum(torch.ones(2, 300, dtype=torch.bfloat16))
    tensor([300., 300.])
    """
    if x.shape[-1] == 1:
        return x[..., 0]
    return x.sum(-1, dtype=wide(x.dtype))


def vecdot(a: Tensor, b: Tensor) -> Tensor:
    """Return dot products over the last axis, summed in float32 at least.

    Low-precision factors are multiplied without a cast: the products are as precise as
    the factors, and a cast would copy both at twice the size.

    Examples
    --------
    >>> vecdot(torch.ones(2, 300).bfloat16(), torch.ones(300).bfloat16())
    tensor([300., 300.])
    """
    product = a * b
    return product.sum(-1, dtype=wide(product.dtype))


def summed_outer_squared_norm(a: Tensor, b: Tensor) -> Tensor:
    r"""Return the squared norm of :math:`\sum_t a_t b_t^\top` for each pair of a batch.

    Parameters
    ----------
    a : tensor of shape (B, P, T)
    b : tensor of shape (B, Q, T)

    Returns
    -------
    tensor of shape (B,)

    Notes
    -----
    With one position it is the product of the squared norms. Otherwise it is the
    cheaper side of

    .. math:: \Big\|\sum_t a_t b_t^\top\Big\|_F^2
              = \sum_{t, t'} \langle a_t, a_{t'} \rangle \langle b_t, b_{t'} \rangle ,

    where the outer products cost ``T P Q`` and the Gram matrices ``T T (P + Q)``.

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
