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


def forward(x, residual, norm, counter, relu):
    """Normalise images by channel and update the running statistics.

    Return the images, and the mean and inverse standard deviation (C,).

    Parameters
    ----------
    x : Tensor (N, C, H, W), channels last
    residual : Tensor like x, or None
        Added to the normalised images.
    norm : nn.BatchNorm2d
    counter : Tensor of int32 (C,), zeros
        Used by the programs to count those that are done.
    relu : bool
    """
    shape = _Shape(x)
    mean, rstd = torch.empty((2, shape.n_channels), device=x.device)
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
            BLOCK_P=N_PARTIALS,
            tiles_per_slice=shape.tiles_per_slice,
            **shape.sizes,
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
            **shape.sizes,
            **shape.blocks,
        )
    return y, mean, rstd


def backward(grad, x, y, mean, rstd, weight, bias, counter, relu, add):
    """Return the gradients of input, residual (None if missing), weight and bias."""
    shape = _Shape(x)
    grad_weight, grad_bias = torch.empty((2, shape.n_channels), device=x.device)
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
            tiles_per_slice=shape.tiles_per_slice,
            **shape.sizes,
            **common,
        )
        gradient[shape.tiles](
            grad_x=grad_x,
            grad_residual=grad_residual,
            ADD=add and relu,
            **shape.sizes,
            **common,
        )
    return grad_x, grad_residual if add else None, grad_weight, grad_bias


class _Shape:
    """Assignment of the pixels of a batch to programs."""

    def __init__(self, x):
        n, self.n_channels, height, width = x.shape
        self.device, n_rows = x.device, n * height * width
        self.sizes = {"n_rows": n_rows, "n_channels": self.n_channels}
        block_c = min(64, max(16, next_power_of_2(self.n_channels)))
        block_r = TILE // block_c
        self.blocks = {"BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": N_WARPS}
        n_blocks, n_tiles = cdiv(self.n_channels, block_c), cdiv(n_rows, block_r)
        self.tiles_per_slice = cdiv(n_tiles, max(1, N_PROGRAMS // n_blocks))
        self.summing = (cdiv(n_tiles, self.tiles_per_slice), n_blocks)
        self.tiles = (n_tiles, n_blocks)

    def partials(self):
        """Return memory for two sums per channel and program."""
        size = (*self.summing, 2, self.blocks["BLOCK_C"])
        return torch.empty(size, device=self.device)


def _on(device):
    return torch.cuda.device(device if device.type == "cuda" else -1)
