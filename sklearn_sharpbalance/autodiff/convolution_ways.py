r"""Ways to the squared norm of each sample's gradient in the weight of a convolution.

A convolution is a linear map of *patches*, the windows of the input that its outputs
see. Writing them down takes as many copies of the input as the kernel has entries, and
on a GPU longer than all the rest. So there are other ways:

``patches``
    Writes the patches and goes on as for a linear layer.
``shifted``
    With stride 1, the part of the patches that belongs to one kernel entry :math:`k`
    is the picture itself, shifted. One product of views for each entry gives
    :math:`\sum_k \|\sum_t g_t x_{t + k}^\top\|_F^2`.
``pixels``
    The Gram matrix of the patches follows from that of the pixels by sums along
    diagonals, :math:`\langle p_t, p_{t'} \rangle = \sum_k \langle x_{t + k}, x_{t' + k}
    \rangle`, one spatial axis after the other.
``kernel``
    On a GPU, each sample's gradient is formed tile by tile in registers and squared
    there; nothing but norms is written.
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
    "WAYS",
    "Axis",
    "Way",
    "cheapest_way",
    "convolution_patches",
    "possible_ways",
]


class Axis(NamedTuple):
    """A spatial axis: output ``t`` reads the inputs ``stride * t + offset``.

    What lies outside of ``range(n_in)`` is zero.
    """

    n_in: int
    n_out: int
    stride: int
    offsets: range

    def covered(self, offset: int) -> tuple[int, int]:
        """Start and stop of the outputs that find an input at ``offset``.

        Examples
        --------
        >>> Axis(n_in=5, n_out=5, stride=1, offsets=range(-1, 2)).covered(-1)
        (1, 5)
        """
        start = max(0, -(offset // self.stride))
        stop = min(self.n_out, (self.n_in - 1 - offset) // self.stride + 1)
        return start, max(start, stop)


class Way(NamedTuple):
    """A way to the norms; ``x`` is (B, C, in..), ``g`` is (B, Q, out..).

    The other two say what it takes for one sample with C and Q channels: products of
    numbers and numbers moved, and the numbers that are written at the same time.
    """

    squared_norms: Callable[[Sequence[Axis], Tensor, Tensor], Tensor]
    work: Callable[[Sequence[Axis], int, int], tuple[int, int]]
    workspace: Callable[[Sequence[Axis], int, int], int]


@lru_cache(maxsize=1024)  # asked for each layer of each chunk
def cheapest_way(
    axes: tuple[Axis, ...], c: int, q: int, device_type: str, dtype: torch.dtype
) -> str:
    """Name of the way with the least work.

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
        A key of ``WAYS``.

    Examples
    --------
    >>> small, large = (Axis(n, n, 1, range(-1, 2)) for n in (4, 32))
    >>> cheapest_way((small, small), 64, 64, "cuda", torch.float32)
    'pixels'
    >>> cheapest_way((large, large), 64, 64, "cpu", torch.float32)
    'patches'
    >>> cheapest_way((large, large), 3, 64, "cuda", torch.float32)
    'patches'
    """
    # On a GPU memory is far slower than arithmetic. On a CPU many small products cost
    # more than the copies that they save.
    on_cpu = device_type == "cpu"
    price = 4 if on_cpu else 128

    def cost(name):
        products, moves = WAYS[name].work(axes, c, q)
        return products + price * moves

    names = possible_ways(axes, device_type, dtype)
    return min((n for n in names if not (on_cpu and n == "shifted")), key=cost)


def possible_ways(
    axes: Sequence[Axis], device_type: str, dtype: torch.dtype
) -> list[str]:
    """Names of the ways that serve a convolution with these axes on a device.

    Examples
    --------
    >>> strided = Axis(n_in=8, n_out=4, stride=2, offsets=range(3))
    >>> possible_ways([strided], "cpu", torch.float32)
    ['patches', 'pixels']
    """
    strided = any(axis.stride > 1 for axis in axes)
    impossible = set()
    if strided or len(axes) > 2:
        impossible.add("shifted")
    known = len(axes) == 2 and dtype != torch.float64
    if not known or not kernels_run_on(torch.device(device_type)):
        impossible.add("kernel")
    return [name for name in WAYS if name not in impossible]


def _sizes(axes):
    """Numbers of inputs, of outputs and of kernel entries."""
    return (
        math.prod(axis.n_in for axis in axes),
        math.prod(axis.n_out for axis in axes),
        math.prod(len(axis.offsets) for axis in axes),
    )


# --- patches


def _by_patches(axes, x, g):
    return summed_outer_squared_norm(convolution_patches(axes, x), g.flatten(2))


def convolution_patches(axes: Sequence[Axis], x: Tensor) -> Tensor:
    """The window of ``x`` that each output sees; (B, C k.., T).

    Windows are strided views, copied once: ``F.unfold`` costs a kernel per sample on
    a GPU and several times as much on a CPU. The entries of a window are in an order
    that depends on the strides of ``x``.
    """
    sides = []
    for axis in reversed(axes):
        last = axis.stride * (axis.n_out - 1) + axis.offsets[-1]
        sides += [-axis.offsets[0], max(0, last + 1 - axis.n_in)]
    x = F.pad(x, sides) if any(sides) else x
    for i, axis in enumerate(axes):
        span = axis.offsets[-1] - axis.offsets[0] + 1
        x = x.unfold(2 + i, span, axis.stride)[..., :: axis.offsets.step]
    # Now (B, C, out.., kernel..). The copy is fast if it keeps the innermost axis.
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
    """Rows of ``x`` and ``g`` get one length: a shift of the flat picture is a view.

    What a shift moves over the end of a row meets gradients that are set to zero.
    """
    rows, columns = [Axis(1, 1, 1, range(1)), *axes][-2:]  # a signal is one row
    pitch = max(columns.n_in, columns.n_out)
    x, g = (_flat(z, pitch) for z in (x, g))
    norms = [x.new_zeros(len(x), dtype=wide(x.dtype))]  # of the kernel's entries
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
    """Pixels before channels, so that shifts keep the alignment; (B, T, C)."""
    if z.shape[-1] < pitch:
        z = F.pad(z, [0, pitch - z.shape[-1]])
    return z.flatten(2).mT.contiguous()


def _only_columns(g, pitch, start, stop):
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
    """Take axes ``i`` and ``j`` of a Gram matrix from inputs to windows."""

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
    moves, sizes = s * c + t * q + 2 * (s * s + t * t), [axis.n_in for axis in axes]
    for i in reversed(range(len(axes))):
        sizes[i] = axes[i].n_out
        moves += 4 * len(axes[i].offsets) * math.prod(sizes) ** 2
    return s * s * c + t * t * q, moves


def _pixels_workspace(axes, c, q):
    s, t, _ = _sizes(axes)
    return 2 * max(s, t) ** 2 + 2 * t * t


# --- kernel


def _by_kernel(axes, x, g):
    # Not before a GPU asks for it: Triton may be missing.
    from sklearn_sharpbalance.autodiff.convolution_kernel import kernel_squared_norms

    return kernel_squared_norms(axes, x, g)


def _kernel_work(axes, c, q):
    _, t, k = _sizes(axes)
    c, q = max(c, 16), max(q, 16)  # the smallest tile
    # Tiles of up to 128 channels read the others' side once each, from a near cache.
    reads = t * k * (c * -(-q // 128) + q * -(-c // 128))
    return t * k * c * q, reads // 4 + k


def _kernel_workspace(axes, c, q):
    _, _, k = _sizes(axes)
    return k * -(-c // 128) * -(-q // 128)


WAYS = {
    "patches": Way(_by_patches, _patches_work, _patches_workspace),
    "shifted": Way(_by_shifts, _shifts_work, _shifts_workspace),
    "pixels": Way(_by_pixels, _pixels_work, _pixels_workspace),
    "kernel": Way(_by_kernel, _kernel_work, _kernel_workspace),
}
