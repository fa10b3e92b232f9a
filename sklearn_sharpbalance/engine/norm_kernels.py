"""BatchNorm on channels-last pictures as two kernels a pass, with what follows it.

PyTorch hands bf16 to its own kernels, seven launches a layer, which take a third of a
narrow ResNet's step; ``torch.compile`` fuses them, at the price of 40 seconds. Pictures
are matrices here: one row per pixel, one column per channel.
"""

import torch
import triton
import triton.language as tl

__all__ = ["backward", "forward"]

# Timed on an H200: larger tiles and more programs or warps were slower.
TILE = 4096  # numbers that one program holds at a time
N_PROGRAMS = 264  # that sum up: two for each multiprocessor
N_WARPS = 4
PARTIAL_ROWS = tl.constexpr(128)


def forward(x, residual, norm, counter, relu):
    """Output, mean and inverse deviation of each channel; updates running statistics.

    Parameters
    ----------
    x : Tensor (N, C, H, W), channels last
    residual : Tensor like x, or None
        Added to the normalised pictures.
    norm : nn.BatchNorm2d
    counter : Tensor of int32, zeros
        Place for the programs to count themselves, one for each block of channels.
    relu : bool
    """
    shape = _Shape(x)
    mean, rstd = torch.empty((2, shape.n_channels), device=x.device).unbind()
    track = norm.running_mean is not None
    with _on(x.device):
        _statistics[shape.summing](
            x,
            shape.partials(),
            counter,
            mean,
            rstd,
            norm.running_mean if track else mean,
            norm.running_var if track else mean,
            norm.momentum,
            norm.eps,
            *shape.arguments,
            TRACK=track,
            **shape.blocks,
        )
        y = torch.empty_like(x)
        _normalise[shape.tiles](
            x,
            x if residual is None else residual,
            y,
            mean,
            rstd,
            norm.weight,
            norm.bias,
            shape.n_rows,
            shape.n_channels,
            ADD=residual is not None,
            RELU=relu,
            **shape.blocks,
        )
    return y, mean, rstd


def backward(grad, x, y, mean, rstd, weight, bias, counter, relu, add):
    """Gradients of input, residual (None without one), weight and bias."""
    shape = _Shape(x)
    grad_weight, grad_bias = torch.empty((2, shape.n_channels), device=x.device)
    # Without a residual the input tells where the output is positive.
    mask = (2 if add else 1) if relu else 0
    grad_x = torch.empty_like(x)
    grad_residual = torch.empty_like(x) if add and relu else grad
    tensors = (grad, x, x if y is None else y, mean, rstd, weight, bias)
    with _on(x.device):
        _gradient_sums[shape.summing](
            *tensors,
            shape.partials(),
            counter,
            grad_weight,
            grad_bias,
            *shape.arguments,
            MASK=mask,
            **shape.blocks,
        )
        _gradient[shape.tiles](
            *tensors,
            grad_weight,
            grad_bias,
            grad_x,
            grad_residual,
            shape.n_rows,
            shape.n_channels,
            MASK=mask,
            ADD=add and relu,
            **shape.blocks,
        )
    return grad_x, grad_residual if add else None, grad_weight, grad_bias


class _Shape:
    """How the pixels of a batch are dealt to programs."""

    def __init__(self, x):
        n, self.n_channels, height, width = x.shape
        self.device, self.n_rows = x.device, n * height * width
        block_c = min(64, max(16, triton.next_power_of_2(self.n_channels)))
        block_r = TILE // block_c
        self.blocks = {"BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": N_WARPS}
        n_blocks = triton.cdiv(self.n_channels, block_c)
        n_tiles = triton.cdiv(self.n_rows, block_r)
        tiles_a_slice = triton.cdiv(n_tiles, max(1, N_PROGRAMS // n_blocks))
        self.summing = (triton.cdiv(n_tiles, tiles_a_slice), n_blocks)
        self.tiles = (n_tiles, n_blocks)
        self.arguments = (self.n_rows, self.n_channels, tiles_a_slice)

    def partials(self):
        """Two sums of every channel by every program."""
        size = (*self.summing, 2, self.blocks["BLOCK_C"])
        return torch.empty(size, device=self.device)


def _on(device):
    return torch.cuda.device(device if device.type == "cuda" else -1)


@triton.jit
def _put(partials, first, second, BLOCK_C: tl.constexpr):
    """Write the sums of one program."""
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    place = partials + place * 2 * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(place, tl.sum(first, axis=0))
    tl.store(place + BLOCK_C, tl.sum(second, axis=0))


@triton.jit
def _is_last(counter):
    """Whether all other programs of these channels have written their sums."""
    tl.debug_barrier()
    n_before = tl.atomic_add(counter + tl.program_id(1), 1, sem="acq_rel")
    return n_before == tl.num_programs(0) - 1


@triton.jit
def _collect(partials, BLOCK_C: tl.constexpr):
    """Both sums over all programs, in the same order every time."""
    n = tl.num_programs(0)
    first = tl.zeros((PARTIAL_ROWS, BLOCK_C), tl.float32)
    second = tl.zeros((PARTIAL_ROWS, BLOCK_C), tl.float32)
    column = tl.arange(0, BLOCK_C)[None, :]
    for start in range(0, n, PARTIAL_ROWS):
        row = start + tl.arange(0, PARTIAL_ROWS)[:, None]
        place = (tl.program_id(1) * n + row) * 2 * BLOCK_C + column
        ok = (row < n) & (column < BLOCK_C)
        # Past the nearest cache, which other multiprocessors do not write to.
        first += tl.load(partials + place, mask=ok, other=0.0, cache_modifier=".cg")
        place += BLOCK_C
        second += tl.load(partials + place, mask=ok, other=0.0, cache_modifier=".cg")
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def _statistics(
    x,
    partials,
    counter,
    mean_out,
    rstd_out,
    running_mean,
    running_var,
    momentum,
    eps,
    n_rows,
    n_channels,
    tiles_a_slice,
    TRACK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Mean and variance of each channel."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    # Sums of squares cancel badly far from zero: count from a value of the channel.
    shift = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = tl.program_id(0) * tiles_a_slice * BLOCK_R
    for tile in range(tiles_a_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok = (row < n_rows)[:, None] & inside[None, :]
        place = row[:, None] * n_channels + channel[None, :]
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - shift[None, :], 0.0)
        total += value
        square += value * value
    _put(partials, total, square, BLOCK_C)
    if _is_last(counter):
        total_all, square_all = _collect(partials, BLOCK_C)
        tl.store(counter + tl.program_id(1), 0)
        offset = total_all / n_rows
        mean = shift + offset
        var = tl.maximum(square_all / n_rows - offset * offset, 0.0)
        tl.store(mean_out + channel, mean, mask=inside)
        tl.store(rstd_out + channel, 1.0 / tl.sqrt(var + eps), mask=inside)
        if TRACK:
            unbiased = var * n_rows / tl.maximum(n_rows - 1, 1)
            old = tl.load(running_mean + channel, mask=inside)
            new = old + momentum * (mean - old)
            tl.store(running_mean + channel, new, mask=inside)
            old = tl.load(running_var + channel, mask=inside)
            new = old + momentum * (unbiased - old)
            tl.store(running_var + channel, new, mask=inside)


@triton.jit
def _normalise(
    x,
    residual,
    y,
    mean_in,
    rstd_in,
    weight_in,
    bias_in,
    n_rows,
    n_channels,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The normalised tile, plus the residual, clamped at zero."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    ok = (row < n_rows)[:, None] & inside[None, :]
    place = row[:, None] * n_channels + channel[None, :]
    mean = tl.load(mean_in + channel, mask=inside, other=0.0)
    rstd = tl.load(rstd_in + channel, mask=inside, other=0.0)
    weight = tl.load(weight_in + channel, mask=inside, other=0.0)
    bias = tl.load(bias_in + channel, mask=inside, other=0.0)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    value = (value - mean[None, :]) * rstd[None, :] * weight[None, :] + bias[None, :]
    if ADD:
        value += tl.load(residual + place, mask=ok, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + place, value, mask=ok)


@triton.jit
def _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK: tl.constexpr):
    """Gradient before the clamp."""
    value = tl.load(grad + place, mask=ok, other=0.0).to(tl.float32)
    if MASK == 1:
        positive = normal * weight[None, :] + bias[None, :] > 0.0
        value = tl.where(positive, value, 0.0)
    if MASK == 2:
        output = tl.load(y + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(output > 0.0, value, 0.0)
    return value


@triton.jit
def _gradient_sums(
    grad,
    x,
    y,
    mean_in,
    rstd_in,
    weight_in,
    bias_in,
    partials,
    counter,
    grad_weight,
    grad_bias,
    n_rows,
    n_channels,
    tiles_a_slice,
    MASK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradients of weight and bias."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    mean = tl.load(mean_in + channel, mask=inside, other=0.0)
    rstd = tl.load(rstd_in + channel, mask=inside, other=0.0)
    weight = tl.load(weight_in + channel, mask=inside, other=0.0)
    bias = tl.load(bias_in + channel, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = tl.program_id(0) * tiles_a_slice * BLOCK_R
    for tile in range(tiles_a_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok = (row < n_rows)[:, None] & inside[None, :]
        place = row[:, None] * n_channels + channel[None, :]
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        normal = (value - mean[None, :]) * rstd[None, :]
        g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
        total += g
        product += g * normal
    _put(partials, total, product, BLOCK_C)
    if _is_last(counter):
        total_all, product_all = _collect(partials, BLOCK_C)
        tl.store(counter + tl.program_id(1), 0)
        tl.store(grad_bias + channel, total_all, mask=inside)
        tl.store(grad_weight + channel, product_all, mask=inside)


@triton.jit
def _gradient(
    grad,
    x,
    y,
    mean_in,
    rstd_in,
    weight_in,
    bias_in,
    grad_weight,
    grad_bias,
    grad_x,
    grad_residual,
    n_rows,
    n_channels,
    MASK: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradient of the input, and of the residual."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    ok = (row < n_rows)[:, None] & inside[None, :]
    place = row[:, None] * n_channels + channel[None, :]
    mean = tl.load(mean_in + channel, mask=inside, other=0.0)
    rstd = tl.load(rstd_in + channel, mask=inside, other=0.0)
    weight = tl.load(weight_in + channel, mask=inside, other=0.0)
    bias = tl.load(bias_in + channel, mask=inside, other=0.0)
    total = tl.load(grad_bias + channel, mask=inside, other=0.0) / n_rows
    product = tl.load(grad_weight + channel, mask=inside, other=0.0) / n_rows
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    normal = (value - mean[None, :]) * rstd[None, :]
    g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
    centred = g - total[None, :] - normal * product[None, :]
    tl.store(grad_x + place, centred * (weight * rstd)[None, :], mask=ok)
    if ADD:
        tl.store(grad_residual + place, g, mask=ok)
