"""Triton programs of BatchNorm on images as matrices (pixels, channels).

Rows may be split into two groups with separate statistics. The first programs of a
launch work for the first group, the others for the second.
"""

import triton
import triton.language as tl

__all__ = ["gradient", "gradient_sums", "normalise", "statistics"]


@triton.jit
def _group(n_rows, split, n_first):
    """Return a program's group, its first row and end, and the number in the group."""
    second = tl.program_id(0) >= n_first
    group = second.to(tl.int32)
    begin = tl.where(second, split, 0)
    end = tl.where(second, n_rows, split)
    return group, begin, end, tl.program_id(0) - group * n_first


@triton.jit
def _places(row, end, channel, n_channels):
    """Return which entries of a tile exist, and their offsets."""
    ok = (row < end)[:, None] & (channel < n_channels)[None, :]
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
def _is_last(counter, number, n_all):
    """Return whether this is the last of the ``n_all`` programs of a counter.

    The last program resets the counter for the next launch.
    """
    tl.debug_barrier()
    place = counter + number * tl.num_programs(1) + tl.program_id(1)
    last = tl.atomic_add(place, 1, sem="acq_rel") == n_all - 1
    if last:
        tl.store(place, 0)
    return last


@triton.jit
def _collect(
    partials, first_slice, end_slice, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Return both sums over the programs of a group, in a fixed order."""
    n = tl.num_programs(0)
    first = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    column = tl.arange(0, BLOCK_C)[None, :]
    for start in range(first_slice, end_slice, BLOCK_P):
        row = start + tl.arange(0, BLOCK_P)[:, None]
        place = (tl.program_id(1) * n + row) * 2 * BLOCK_C + column
        ok = (row < end_slice) & (column < BLOCK_C)
        # Bypass the L1 cache: other multiprocessors do not write to it.
        first += tl.load(partials + place, mask=ok, other=0.0, cache_modifier=".cg")
        place += BLOCK_C
        second += tl.load(partials + place, mask=ok, other=0.0, cache_modifier=".cg")
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def _group_sums(partials, group, n_first, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return both sums of one group."""
    end = tl.where(group == 1, tl.num_programs(0), n_first)
    return _collect(partials, group * n_first, end, BLOCK_P, BLOCK_C)


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
    split,
    n_first,
    n_channels,
    tiles_per_slice,
    TRACK: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute mean and inverse standard deviation of each channel."""
    group, begin, end, number = _group(n_rows, split, n_first)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    # Subtract a value of the channel, to avoid cancellation in sums of squares.
    shift = tl.load(x + begin * n_channels + channel, mask=inside, other=0.0)
    shift = shift.to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = begin + number * tiles_per_slice * BLOCK_R
    for tile in range(tiles_per_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok, place = _places(row, end, channel, n_channels)
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - shift[None, :], 0.0)
        total += value
        square += value * value
    _put(partials, total, square, BLOCK_C)
    if _is_last(counter, group, _n_slices(group, n_first)):
        total_all, square_all = _group_sums(partials, group, n_first, BLOCK_P, BLOCK_C)
        count = end - begin
        offset = total_all / count
        var = _clamped(square_all / count - offset * offset)
        out = group * n_channels + channel
        tl.store(mean_out + out, shift + offset, mask=inside)
        tl.store(rstd_out + out, 1.0 / tl.sqrt(var + eps), mask=inside)
        if TRACK:  # noqa: SIM102 (only this condition is known at compile time)
            if _is_last(counter, 2, GROUPS):
                if GROUPS == 2:
                    _track(
                        mean_out + n_channels,
                        rstd_out + n_channels,
                        running_mean,
                        running_var,
                        momentum,
                        eps,
                        n_rows - split,
                        channel,
                        inside,
                    )
                _track(
                    mean_out,
                    rstd_out,
                    running_mean,
                    running_var,
                    momentum,
                    eps,
                    split,
                    channel,
                    inside,
                )


@triton.jit
def _n_slices(group, n_first):
    """Return the number of programs of a group that compute sums."""
    return tl.where(group == 1, tl.num_programs(0) - n_first, n_first)


@triton.jit
def _track(
    mean_in,
    rstd_in,
    running_mean,
    running_var,
    momentum,
    eps,
    count,
    channel,
    inside,
):
    """Move running statistics towards those of one group."""
    mean = tl.load(mean_in + channel, mask=inside, other=0.0, cache_modifier=".cg")
    rstd = tl.load(rstd_in + channel, mask=inside, other=1.0, cache_modifier=".cg")
    unbiased = (1.0 / (rstd * rstd) - eps) * count / tl.maximum(count - 1, 1)
    old = tl.load(running_mean + channel, mask=inside)
    tl.store(running_mean + channel, old + momentum * (mean - old), mask=inside)
    old = tl.load(running_var + channel, mask=inside)
    tl.store(running_var + channel, old + momentum * (unbiased - old), mask=inside)
    tl.debug_barrier()


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
    split,
    n_first,
    n_channels,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Normalise a tile, add the residual, and apply the ReLU."""
    group, begin, end, number = _group(n_rows, split, n_first)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = begin + number * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    own = group * n_channels + channel
    ok, place = _places(row, end, channel, n_channels)
    mean, rstd = _pair(mean_in, rstd_in, own, inside)
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
    split,
    n_first,
    n_channels,
    tiles_per_slice,
    MASK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of weight and bias."""
    group, begin, end, number = _group(n_rows, split, n_first)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    own = group * n_channels + channel
    mean, rstd = _pair(mean_in, rstd_in, own, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = begin + number * tiles_per_slice * BLOCK_R
    for tile in range(tiles_per_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok, place = _places(row, end, channel, n_channels)
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        normal = (value - mean[None, :]) * rstd[None, :]
        g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
        total += g
        product += g * normal
    _put(partials, total, product, BLOCK_C)
    if _is_last(counter, group, _n_slices(group, n_first)):
        total_all, product_all = _group_sums(partials, group, n_first, BLOCK_P, BLOCK_C)
        tl.store(grad_bias + own, total_all, mask=inside)
        tl.store(grad_weight + own, product_all, mask=inside)


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
    split,
    n_first,
    n_channels,
    MASK: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of the input and of the residual."""
    group, begin, end, number = _group(n_rows, split, n_first)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = begin + number * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    own = group * n_channels + channel
    ok, place = _places(row, end, channel, n_channels)
    mean, rstd = _pair(mean_in, rstd_in, own, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    count = end - begin
    total, product = _pair(grad_bias, grad_weight, own, inside)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    normal = (value - mean[None, :]) * rstd[None, :]
    g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
    centred = g - (total[None, :] + normal * product[None, :]) / count
    tl.store(grad_x + place, centred * (weight * rstd)[None, :], mask=ok)
    if ADD:
        tl.store(grad_residual + place, g, mask=ok)
