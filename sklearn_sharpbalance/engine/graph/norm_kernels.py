"""BatchNorm, sum and ReLU on channels-last images, as two kernels per pass.

PyTorch needs seven launches per layer for bf16, the largest part of a narrow ResNet's
step. ``torch.compile`` fuses them, but compiles again for every shape. Here images
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


def forward(x, residual, norm, counter, relu, n_first=None):
    """Normalise images by channel and update the running statistics.

    Return the images, and the mean and inverse standard deviation (2, C) of each group.

    Parameters
    ----------
    x : Tensor (N, C, H, W), channels last
    residual : Tensor like x, or None
        Added to the normalised images.
    norm : nn.BatchNorm2d
    counter : Tensor of int32 (3 * C,), zeros
        Used by the programs to count those that are done.
    relu : bool
    n_first : int or None, default=None
        Normalise the first ``n_first`` images and the others as separate groups;
        running statistics are updated by the others first. None is one group.
    """
    shape = _Shape(x, n_first)
    mean, rstd = torch.empty((2, 2, shape.n_channels), device=x.device).unbind()
    track = norm.running_mean is not None
    y = torch.empty_like(x)
    with _on(x.device):
        statistics[shape.summing](
            x=x,
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
        normalise[shape.tiles](
            x=x,
            residual=x if residual is None else residual,
            y=y,
            mean_in=mean,
            rstd_in=rstd,
            weight_in=norm.weight,
            bias_in=norm.bias,
            ADD=residual is not None,
            RELU=relu,
            **shape.cut,
            **shape.blocks,
        )
    return y, mean, rstd


def backward(grad, x, y, mean, rstd, weight, bias, counter, relu, add, n_first=None):
    """Return the gradients of input, residual, weight (2, C) and bias (2, C).

    Those of weight and bias are for each group; that of a missing residual is None.
    """
    shape = _Shape(x, n_first)
    grad_weight, grad_bias = torch.empty((2, 2, shape.n_channels), device=x.device)
    # Which values the ReLU keeps: 2 reads the output, 1 computes its sign from x.
    mask = (2 if add else 1) if relu else 0
    grad_x = torch.empty_like(x)
    grad_residual = torch.empty_like(x) if add and relu else grad
    common = {
        "grad": grad,
        "x": x,
        "y": x if y is None else y,
        "mean_in": mean,
        "rstd_in": rstd,
        "weight_in": weight,
        "bias_in": bias,
        "grad_weight": grad_weight,
        "grad_bias": grad_bias,
        "MASK": mask,
        **shape.blocks,
    }
    with _on(x.device):
        gradient_sums[shape.summing](
            partials=shape.partials(),
            counter=counter,
            BLOCK_P=N_PARTIALS,
            **shape.sums,
            **common,
        )
        gradient[shape.tiles](
            grad_x=grad_x,
            grad_residual=grad_residual,
            ADD=add and relu,
            **shape.cut,
            **common,
        )
    return grad_x, grad_residual if add else None, grad_weight, grad_bias


class _Shape:
    """Assignment of the pixels of a batch to programs."""

    def __init__(self, x, n_first):
        n, self.n_channels, height, width = x.shape
        self.device, n_rows = x.device, n * height * width
        split = n_rows if n_first is None else n_first * height * width
        self.n_groups = 1 if split == n_rows else 2
        block_c = min(64, max(16, next_power_of_2(self.n_channels)))
        block_r = TILE // block_c
        self.blocks = {"BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": N_WARPS}
        n_blocks = cdiv(self.n_channels, block_c)
        tiles = [cdiv(rows, block_r) for rows in (split, n_rows - split)]
        tiles_per_slice = cdiv(sum(tiles), max(1, N_PROGRAMS // n_blocks))
        slices = [cdiv(n_tiles, tiles_per_slice) for n_tiles in tiles]
        self.summing = (sum(slices), n_blocks)
        self.tiles = (sum(tiles), n_blocks)
        # Rows and programs of the first group are split and n_first.
        sizes = {"n_rows": n_rows, "split": split, "n_channels": self.n_channels}
        self.cut = sizes | {"n_first": tiles[0]}
        self.sums = sizes | {"n_first": slices[0], "tiles_per_slice": tiles_per_slice}

    def partials(self):
        """Return memory for two sums per channel and program."""
        size = (*self.summing, 2, self.blocks["BLOCK_C"])
        return torch.empty(size, device=self.device)


def _on(device):
    return torch.cuda.device(device if device.type == "cuda" else -1)
