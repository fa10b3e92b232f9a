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

    A single group is passed to the kernels twice.

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
            x=x[0],
            x2=x[-1],
            partials=shape.partials(),
            counter=counter,
            mean_out=mean,
            rstd_out=rstd,
            running_mean=norm.running_mean if track else mean,
            running_var=norm.running_var if track else mean,
            momentum=norm.momentum,
            eps=norm.eps,
            TRACK=track,
            GROUPS=shape.n_groups,
            BLOCK_P=N_PARTIALS,
            **shape.sums,
            **shape.blocks,
        )
        added = x if residual is None else residual
        normalise[shape.tiles](
            x=x[0],
            x2=x[-1],
            residual=added[0],
            residual2=added[-1],
            y=y[0],
            y2=y[-1],
            mean_in=mean,
            rstd_in=rstd,
            weight_in=weight[0],
            weight2_in=weight[-1],
            bias_in=bias[0],
            bias2_in=bias[-1],
            ADD=residual is not None,
            RELU=relu,
            **shape.cut,
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
    output = x if y is None else y
    common = {
        "grad": grad[0],
        "grad2": grad[-1],
        "x": x[0],
        "x2": x[-1],
        "y": output[0],
        "y2": output[-1],
        "mean_in": mean,
        "rstd_in": rstd,
        "weight_in": weight[0],
        "weight2_in": weight[-1],
        "bias_in": bias[0],
        "bias2_in": bias[-1],
        "grad_weight": grad_weight,
        "grad_bias": grad_bias,
        "MASK": mask,
        **shape.blocks,
    }
    with _on(device):
        gradient_sums[shape.summing](
            partials=shape.partials(),
            counter=counter,
            BLOCK_P=N_PARTIALS,
            **shape.sums,
            **common,
        )
        added = grad if grad_residual is None else grad_residual
        gradient[shape.tiles](
            grad_x=grad_x[0],
            grad_x2=grad_x[-1],
            grad_residual=added[0],
            grad_residual2=added[-1],
            ADD=grad_residual is not None,
            **shape.cut,
            **common,
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
        sizes = {"n_rows": rows[0], "n_rows2": rows[1], "n_channels": self.n_channels}
        # n_first is the number of programs for the first group.
        self.cut = sizes | {"n_first": tiles[0]}
        self.sums = sizes | {"n_first": slices[0], "tiles_per_slice": tiles_per_slice}

    def partials(self):
        """Return memory for two sums per channel and program."""
        size = (*self.summing, 2, self.blocks["BLOCK_C"])
        return torch.empty(size, device=self.device)


def _on(device):
    return torch.cuda.device(device if device.type == "cuda" else -1)
