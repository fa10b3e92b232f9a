"""BatchNorm, sum and ReLU on channels-last pictures, as two kernels per pass.

PyTorch needs seven launches per layer for bf16, the largest part of a narrow ResNet's
step. ``torch.compile`` fuses them, but compiles again for every shape. Here pictures
are matrices: one row per pixel, one column per channel.
"""

import torch
from triton import cdiv, next_power_of_2

from sklearn_sharpbalance.engine.graph.norm_programs import (
    gradient,
    gradient_sums,
    normalise,
    statistics,
)

__all__ = ["backward", "forward"]

# Measured by examples/benchmarks/bench_norms.py on an H200.
TILE = 4096  # numbers that one program loads at a time
N_PROGRAMS = 264  # for sums: two for each multiprocessor
N_WARPS = 4
N_PARTIALS = 64  # partial sums that the last program reads at a time


def forward(x, residual, y, weight, bias, norm, counter, relu):
    """Normalise pictures by channel and update the running statistics.

    Parameters
    ----------
    x : list of Tensor (N, C, H, W), channels last
        One or two groups of pictures, which are normalised separately. The second
        group updates the running statistics first.
    residual : list like x, or None
        Added to the normalised pictures.
    y : list like x
        The result is written to these tensors.
    weight, bias : list of Tensor (C,)
        One for each group.
    norm : nn.BatchNorm2d
    counter : Tensor of int32 (3 * C,), zeros
        Used by the programs to count those that are done.
    relu : bool

    Returns
    -------
    mean, rstd : Tensor (2, C)
        Mean and inverse standard deviation of each group.
    """
    shape = _Shape(x)
    device = x[0].device
    mean, rstd = torch.empty((2, 2, shape.n_channels), device=device).unbind()
    track = norm.running_mean is not None
    with _on(device):
        statistics[shape.summing](
            *_both(x),
            shape.partials(),
            counter,
            mean,
            rstd,
            norm.running_mean if track else mean,
            norm.running_var if track else mean,
            norm.momentum,
            norm.eps,
            *shape.sums,
            TRACK=track,
            GROUPS=shape.n_groups,
            BLOCK_P=N_PARTIALS,
            **shape.blocks,
        )
        normalise[shape.tiles](
            *_both(x),
            *_both(x if residual is None else residual),
            *_both(y),
            mean,
            rstd,
            *_both(weight),
            *_both(bias),
            *shape.cut,
            ADD=residual is not None,
            RELU=relu,
            **shape.blocks,
        )
    return mean, rstd


def backward(
    grad, x, y, mean, rstd, weight, bias, grad_x, grad_residual, counter, relu
):
    """Compute the gradients of :func:`forward`.

    Parameters
    ----------
    grad, x : list of Tensor (N, C, H, W), channels last
        Gradient of the output, and input, for each group.
    y : list like x, or None
        Output; only needed for a residual and ReLU.
    mean, rstd : Tensor (2, C)
    weight, bias : list of Tensor (C,)
    grad_x : list like x
        The gradient of the input is written to these tensors.
    grad_residual : list like x, or None
        The same for the residual; None without a residual, or without ReLU: then it
        equals ``grad``.
    counter : Tensor of int32 (3 * C,), zeros
    relu : bool

    Returns
    -------
    grad_weight, grad_bias : Tensor (2, C)
        Gradients of each group.
    """
    shape = _Shape(x)
    device = x[0].device
    grad_weight, grad_bias = torch.empty((2, 2, shape.n_channels), device=device)
    # Which values the ReLU keeps: 2 reads the output, 1 computes its sign from x.
    mask = (1 if y is None else 2) if relu else 0
    tensors = (
        *_both(grad),
        *_both(x),
        *_both(x if y is None else y),
        mean,
        rstd,
        *_both(weight),
        *_both(bias),
    )
    with _on(device):
        gradient_sums[shape.summing](
            *tensors,
            shape.partials(),
            counter,
            grad_weight,
            grad_bias,
            *shape.sums,
            MASK=mask,
            BLOCK_P=N_PARTIALS,
            **shape.blocks,
        )
        gradient[shape.tiles](
            *tensors,
            grad_weight,
            grad_bias,
            *_both(grad_x),
            *_both(grad if grad_residual is None else grad_residual),
            *shape.cut,
            MASK=mask,
            ADD=grad_residual is not None,
            **shape.blocks,
        )
    return grad_weight, grad_bias


class _Shape:
    """Assignment of the pixels of one or two groups of pictures to programs."""

    def __init__(self, x):
        _, self.n_channels, height, width = x[0].shape
        self.device = x[0].device
        rows = [len(group) * height * width for group in x]
        if len(rows) == 1:
            rows.append(0)
        self.n_groups = 2 if rows[1] else 1
        block_c = min(64, max(16, next_power_of_2(self.n_channels)))
        block_r = TILE // block_c
        self.blocks = {"BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": N_WARPS}
        n_blocks = cdiv(self.n_channels, block_c)
        tiles = [cdiv(n_rows, block_r) for n_rows in rows]
        tiles_per_slice = cdiv(sum(tiles), max(1, N_PROGRAMS // n_blocks))
        slices = [cdiv(n_tiles, tiles_per_slice) for n_tiles in tiles]
        self.summing = (sum(slices), n_blocks)
        self.tiles = (sum(tiles), n_blocks)
        # Rows of each group, programs of the first group, channels.
        self.cut = (*rows, tiles[0], self.n_channels)
        self.sums = (*rows, slices[0], self.n_channels, tiles_per_slice)

    def partials(self):
        """Return memory for two sums per channel and program."""
        size = (*self.summing, 2, self.blocks["BLOCK_C"])
        return torch.empty(size, device=self.device)


def _both(tensors):
    """Return the tensors of both groups; a single group twice."""
    return tensors[0], tensors[-1]


def _on(device):
    return torch.cuda.device(device if device.type == "cuda" else -1)
