"""Triton programs of BatchNorm on images as matrices (pixels, channels)."""

import triton
import triton.language as tl

__all__ = ["gradient", "gradient_sums", "normalise", "statistics"]


@triton.jit
def _places(row, n_rows, channel, n_channels):
    """Return which entries of a tile exist, and their offsets."""
    ok = (row < n_rows)[:, None] & (channel < n_channels)[None, :]
    return ok, row[:, None] * n_channels + channel[None, :]


@triton.jit
def _pair(first, second, place, inside):
    """Load the values of each channel from two vectors."""
    one = tl.load(first + place, mask=inside, other=0.0)
    return one, tl.load(second + place, mask=inside, other=0.0)


@triton.jit
def _clamped(value):
    """Return the maximum of values and zero; unlike ``tl.maximum``, keep NaN."""
    return tl.where(value <= 0.0, 0.0, value)


@triton.jit
def _put(partials, first, second, BLOCK_C: tl.constexpr):
    """Write the sums of one program."""
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    place = partials + place * 2 * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(place, tl.sum(first, axis=0))
    tl.store(place + BLOCK_C, tl.sum(second, axis=0))


@triton.jit
def _is_last(counter):
    """Return whether this is the last program of its channels.

    The last program resets the counter for the next launch.
    """
    tl.debug_barrier()
    place = counter + tl.program_id(1)
    last = tl.atomic_add(place, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(place, 0)
    return last


@triton.jit
def _collect(partials, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return both sums over all programs, in a fixed order."""
    n = tl.num_programs(0)
    first = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    column = tl.arange(0, BLOCK_C)[None, :]
    for start in range(0, n, BLOCK_P):
        row = start + tl.arange(0, BLOCK_P)[:, None]
        place = (tl.program_id(1) * n + row) * 2 * BLOCK_C + column
        ok = (row < n) & (column < BLOCK_C)
        # Bypass the L1 cache: other multiprocessors do not write to it.
        first += tl.load(partials + place, mask=ok, other=0.0, cache_modifier=".cg")
        place += BLOCK_C
        second += tl.load(partials + place, mask=ok, other=0.0, cache_modifier=".cg")
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def statistics(
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
    tiles_per_slice,
    TRACK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute mean and inverse standard deviation of each channel."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    # Subtract a value of the channel, to avoid cancellation in sums of squares.
    shift = tl.load(x + channel, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = tl.program_id(0) * tiles_per_slice * BLOCK_R
    for tile in range(tiles_per_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok, place = _places(row, n_rows, channel, n_channels)
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - shift[None, :], 0.0)
        total += value
        square += value * value
    _put(partials, total, square, BLOCK_C)
    if _is_last(counter):
        total_all, square_all = _collect(partials, BLOCK_P, BLOCK_C)
        offset = total_all / n_rows
        mean = shift + offset
        var = _clamped(square_all / n_rows - offset * offset)
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
def normalise(
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
    """Normalise a tile, add the residual, and apply the ReLU."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    ok, place = _places(row, n_rows, channel, n_channels)
    mean, rstd = _pair(mean_in, rstd_in, channel, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    value = (value - mean[None, :]) * rstd[None, :] * weight[None, :] + bias[None, :]
    if ADD:
        value += tl.load(residual + place, mask=ok, other=0.0).to(tl.float32)
    if RELU:
        value = _clamped(value)
    tl.store(y + place, value, mask=ok)


@triton.jit
def _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK: tl.constexpr):
    """Return the gradient of a tile before the ReLU."""
    value = tl.load(grad + place, mask=ok, other=0.0).to(tl.float32)
    if MASK == 1:
        positive = normal * weight[None, :] + bias[None, :] > 0.0
        value = tl.where(positive, value, 0.0)
    if MASK == 2:
        output = tl.load(y + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(output > 0.0, value, 0.0)
    return value


@triton.jit
def gradient_sums(
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
    tiles_per_slice,
    MASK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of weight and bias."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    mean, rstd = _pair(mean_in, rstd_in, channel, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = tl.program_id(0) * tiles_per_slice * BLOCK_R
    for tile in range(tiles_per_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok, place = _places(row, n_rows, channel, n_channels)
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        normal = (value - mean[None, :]) * rstd[None, :]
        g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
        total += g
        product += g * normal
    _put(partials, total, product, BLOCK_C)
    if _is_last(counter):
        total_all, product_all = _collect(partials, BLOCK_P, BLOCK_C)
        tl.store(grad_bias + channel, total_all, mask=inside)
        tl.store(grad_weight + channel, product_all, mask=inside)


@triton.jit
def gradient(
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
    """Compute the gradients of the input and of the residual."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    ok, place = _places(row, n_rows, channel, n_channels)
    mean, rstd = _pair(mean_in, rstd_in, channel, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    total, product = _pair(grad_bias, grad_weight, channel, inside)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    normal = (value - mean[None, :]) * rstd[None, :]
    g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
    centred = g - (total[None, :] + normal * product[None, :]) / n_rows
    tl.store(grad_x + place, centred * (weight * rstd)[None, :], mask=ok)
    if ADD:
        tl.store(grad_residual + place, g, mask=ok)
