r"""Algorithms for the squared norm of each sample's gradient in a convolution's weight.

A convolution is a linear map of *patches*, the windows of the input that its outputs
read. Storing them takes as many copies of the input as the kernel has entries, which on
a GPU is the slowest step. The algorithms avoid it where they can:

``patches``
    Stores the patches and continues as for a linear layer.
``shifted``
    With stride 1, the part of the patches that belongs to one kernel entry :math:`k`
    is the shifted image. One product of views for each entry gives
    :math:`\sum_k \|\sum_t g_t x_{t + k}^\top\|_F^2`.
``pixels``
    The Gram matrix of the patches follows from that of the pixels by sums along
    diagonals, :math:`\langle p_t, p_{t'} \rangle = \sum_k \langle x_{t + k}, x_{t' + k}
    \rangle`, one spatial axis after the other.
``kernel``
    On a GPU, computes each sample's gradient tile by tile in registers, squares it
    there, and writes only the norms.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sklearn_sharpbalance._triton import kernels_run_on
from sklearn_sharpbalance.autodiff.reductions import (
    norm,
    summed_outer_squared_norm,
    vecdot,
    wide,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Axis",
    "cheapest_algorithm",
    "convolution_patches",
    "possible_algorithms",
]


class Axis(NamedTuple):
    """A spatial axis: output ``t`` reads the inputs ``stride * t + offset``.

    Inputs outside of ``range(n_in)`` are zero.
    """

    n_in: int
    n_out: int
    stride: int
    offsets: range

    def covered(self, offset: int) -> tuple[int, int]:
        """Return start and stop of the outputs that read an input at ``offset``.

        Examples
        --------
        >>> Axis(n_in=5, n_out=5, stride=1, offsets=range(-1, 2)).covered(-1)
        (1, 5)
        """
        start = max(0, -(offset // self.stride))
        stop = min(self.n_out, (self.n_in - 1 - offset) // self.stride + 1)
        return start, max(start, stop)


class Algorithm(NamedTuple):
    """An algorithm and its cost.

    Attributes
    ----------
    squared_norms : callable
        ``squared_norms(axes, x, g)`` for x (B, C, in..) and g (B, Q, out..).
    work : callable
        ``work(axes, c, q)`` returns the numbers of multiplications and of memory
        accesses for one sample with C and Q channels.
    workspace : callable
        ``workspace(axes, c, q)`` returns how many numbers are stored at the same time
        for one sample.
    """

    squared_norms: Callable[[Sequence[Axis], Tensor, Tensor], Tensor]
    work: Callable[[Sequence[Axis], int, int], tuple[int, int]]
    workspace: Callable[[Sequence[Axis], int, int], int]


@lru_cache(maxsize=1024)  # called for each layer of each chunk
def cheapest_algorithm(
    axes: tuple[Axis, ...], c: int, q: int, device_type: str, dtype: torch.dtype
) -> str:
    """Return the name of the algorithm with the least work.

    Parameters
    ----------
    axes : tuple of Axis
    c, q : int
        Channels of the input and of the output.
    device_type : str
        "cpu", "cuda", ...
    dtype : torch.dtype
        Of the input and of the gradient.

    Returns
    -------
    str
        A key of ``ALGORITHMS``.

    Examples
    --------
    >>> small, large = (Axis(n, n, 1, range(-1, 2)) for n in (4, 32))
    >>> cheapest_algorithm((small, small), 64, 64, "cuda", torch.float32)
    'pixels'
    >>> cheapest_algorithm((large, large), 64, 64, "cpu", torch.float32)
    'patches'
    >>> cheapest_algorithm((large, large), 3, 64, "cuda", torch.float32)
    'patches'
    """
    names = possible_algorithms(axes, device_type, dtype)
    access_cost = 128  # in multiplications: on a GPU, memory is far slower
    if device_type == "cpu":
        access_cost = 4
        # Many small products cost more on a CPU than the copies that they avoid.
        names = [name for name in names if name != "shifted"]

    def cost(name):
        products, accesses = ALGORITHMS[name].work(axes, c, q)
        return products + access_cost * accesses

    return min(names, key=cost)


def possible_algorithms(
    axes: Sequence[Axis], device_type: str, dtype: torch.dtype
) -> list[str]:
    """Return the names of the algorithms for these axes, device and dtype.

    Examples
    --------
    >>> strided = Axis(n_in=8, n_out=4, stride=2, offsets=range(3))
    >>> possible_algorithms([strided], "cpu", torch.float32)
    ['patches', 'pixels']
    """
    names = list(ALGORITHMS)
    if len(axes) > 2 or any(axis.stride > 1 for axis in axes):
        names.remove("shifted")
    kernel_applies = len(axes) == 2 and dtype != torch.float64
    if not kernel_applies or not kernels_run_on(torch.device(device_type)):
        names.remove("kernel")
    return names


def _sizes(axes):
    """Return the numbers of inputs, of outputs and of kernel entries."""
    return (
        math.prod(axis.n_in for axis in axes),
        math.prod(axis.n_out for axis in axes),
        math.prod(len(axis.offsets) for axis in axes),
    )


# --- patches


def _by_patches(axes, x, g):
    return summed_outer_squared_norm(convolution_patches(axes, x), g.flatten(2))


def convolution_patches(axes: Sequence[Axis], x: Tensor) -> Tensor:
    """Return the window of ``x`` that each output reads; (B, C k.., T).

    Windows are strided views, copied once: ``F.unfold`` launches a kernel per sample on
    a GPU and is several times slower on a CPU. The order of the entries of a window
    depends on the strides of ``x``.
    """
    sides = []
    for axis in reversed(axes):
        last = axis.stride * (axis.n_out - 1) + axis.offsets[-1]
        sides += [-axis.offsets[0], max(0, last + 1 - axis.n_in)]
    x = F.pad(x, sides) if any(sides) else x
    for i, axis in enumerate(axes):
        span = axis.offsets[-1] - axis.offsets[0] + 1
        x = x.unfold(2 + i, span, axis.stride)[..., :: axis.offsets.step]
    # Now (B, C, out.., kernel..). The copy is fast if the innermost axis stays last.
    dims, (_, positions, _) = len(axes), _sizes(axes)
    out, kernel = range(2, 2 + dims), range(2 + dims, 2 + 2 * dims)
    if x.stride(1) == 1:
        return x.permute(0, *out, *kernel, 1).reshape(len(x), positions, -1).mT
    return x.permute(0, 1, *kernel, *out).reshape(len(x), -1, positions)


def _patches_work(axes, c, q):
    s, t, k = _sizes(axes)
    p = k * c
    copies = 4 if t * k > s else 1  # windows that do not overlap are views
    if t == 1:
        return p + q, copies * p + q
    if t * (p + q) < p * q:
        return t * t * (p + q), copies * t * p + t * q + 4 * t * t
    return t * p * q, copies * t * p + t * q + 2 * p * q


def _patches_workspace(axes, c, q):
    _, t, k = _sizes(axes)
    return t * k * c + min(k * c * q, 2 * t * t)


# --- shifted


def _by_shifts(axes, x, g):
    """Pad the rows of ``x`` and ``g`` to one length, so that a shift is a view.

    Pixels that a shift moves beyond the end of a row are multiplied by gradients that
    are set to zero.
    """
    rows, columns = [Axis(1, 1, 1, range(1)), *axes][-2:]  # a signal is one row
    pitch = max(columns.n_in, columns.n_out)
    x, g = _flat(x, pitch), _flat(g, pitch)
    norms = [x.new_zeros(len(x), dtype=wide(x.dtype))]  # one for each kernel entry
    for right in columns.offsets:
        left, end = columns.covered(right)
        if left == end:
            continue
        kept = g if end - left == columns.n_out else _only_columns(g, pitch, left, end)
        for down in rows.offsets:
            top, bottom = rows.covered(down)
            start, stop = top * pitch + left, (bottom - 1) * pitch + end
            shift = down * pitch + right
            if top < bottom:
                seen = x[:, start + shift : stop + shift]  # (B, T, C)
                norms.append(norm(torch.bmm(kept[:, start:stop].mT, seen)))
    return torch.stack(norms).square().sum(0)


def _flat(z, pitch):
    """Return pixels before channels, so that shifts stay aligned; (B, T, C)."""
    if z.shape[-1] < pitch:
        z = F.pad(z, [0, pitch - z.shape[-1]])
    return z.flatten(2).mT.contiguous()


def _only_columns(g, pitch, start, stop):
    """Return a copy with zeros outside of the columns from start to stop."""
    g = g.clone()
    columns = g.unflatten(1, (-1, pitch))
    columns[:, :, :start] = 0
    columns[:, :, stop:] = 0
    return g


def _shifts_work(axes, c, q):
    _, t, k = _sizes(axes)
    return t * k * c * q, k * (t * (c + q) + 2 * c * q)


def _shifts_workspace(axes, c, q):
    s, t, _ = _sizes(axes)
    padding = 0 if axes[-1].n_in == axes[-1].n_out else s * c + 2 * t * q
    return t * q + c * q + padding


# --- pixels


def _by_pixels(axes, x, g):
    x, g = x.flatten(2), g.flatten(2)
    sizes = [axis.n_in for axis in axes]
    gram = torch.bmm(x.mT, x).reshape(len(x), *sizes, *sizes)
    for i in reversed(range(len(axes))):
        gram = _diagonal_sums(gram, axes[i], 1 + i, 1 + i + len(axes))
    return vecdot(gram.flatten(1), torch.bmm(g.mT, g).flatten(1))


def _diagonal_sums(gram, axis, i, j):
    """Turn axes ``i`` and ``j`` of a Gram matrix from inputs into windows."""

    def part(tensor, start, count, step):
        index = [slice(None)] * tensor.ndim
        index[i] = index[j] = slice(start, start + step * (count - 1) + 1, step)
        return tensor[tuple(index)]

    shape = list(gram.shape)
    shape[i] = shape[j] = axis.n_out
    sums = gram.new_zeros(shape, dtype=wide(gram.dtype))
    for offset in axis.offsets:
        start, stop = axis.covered(offset)
        if start < stop:
            count, first = stop - start, axis.stride * start + offset
            part(sums, start, count, 1).add_(part(gram, first, count, axis.stride))
    return sums


def _pixels_work(axes, c, q):
    s, t, _ = _sizes(axes)
    accesses = s * c + t * q + 2 * (s * s + t * t)
    sizes = [axis.n_in for axis in axes]
    for i in reversed(range(len(axes))):
        sizes[i] = axes[i].n_out
        accesses += 4 * len(axes[i].offsets) * math.prod(sizes) ** 2
    return s * s * c + t * t * q, accesses


def _pixels_workspace(axes, c, q):
    s, t, _ = _sizes(axes)
    return 2 * max(s, t) ** 2 + 2 * t * t


# --- kernel


def _by_kernel(axes, x, g):
    # Imported here, because Triton may be missing on machines without a GPU.
    from sklearn_sharpbalance.autodiff.convolution_kernel import kernel_squared_norms

    return kernel_squared_norms(axes, x, g)


def _kernel_work(axes, c, q):
    _, t, k = _sizes(axes)
    c, q = max(c, 16), max(q, 16)  # the smallest tile
    # Each tile of up to 128 channels reads the other factor once, mostly from a cache.
    reads = t * k * (c * -(-q // 128) + q * -(-c // 128))
    return t * k * c * q, reads // 4 + k


def _kernel_workspace(axes, c, q):
    _, _, k = _sizes(axes)
    return k * -(-c // 128) * -(-q // 128)


ALGORITHMS = {
    "patches": Algorithm(_by_patches, _patches_work, _patches_workspace),
    "shifted": Algorithm(_by_shifts, _shifts_work, _shifts_workspace),
    "pixels": Algorithm(_by_pixels, _pixels_work, _pixels_workspace),
    "kernel": Algorithm(_by_kernel, _kernel_work, _kernel_workspace),
}
