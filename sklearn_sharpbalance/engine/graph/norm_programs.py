"""Triton programs of BatchNorm on pictures as matrices (pixels, channels).

Rows may form two groups with separate statistics; arguments of the second group have a
2 in their names. The first programs of a launch work for the first group, the others
for the second. A single group is passed twice.
"""

import triton
import triton.language as tl

__all__ = ["gradient", "gradient_sums", "normalise", "statistics"]


@triton.jit
def _group(n_rows, n_rows2, n_first):
    """Return a program's group, the rows of the group, and its number in the group."""
    second = tl.program_id(0) >= n_first
    group = second.to(tl.int32)
    rows = tl.where(second, n_rows2, n_rows)
    return group, rows, tl.program_id(0) - group * n_first


@triton.jit
def _of_group(group, first, second):
    """Return the pointer of a group."""
    return tl.where(group == 1, second, first)


@triton.jit
def _places(row, rows, channel, n_channels):
    """Return which entries of a tile exist, and their offsets."""
    ok = (row < rows)[:, None] & (channel < n_channels)[None, :]
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
    x2,
    partials,
    counter,
    mean_out,
    rstd_out,
    running_mean,
    running_var,
    momentum,
    eps,
    n_rows,
    n_rows2,
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
    group, rows, number = _group(n_rows, n_rows2, n_first)
    x = _of_group(group, x, x2)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    # Subtract a value of the channel, to avoid cancellation in sums of squares.
    shift = tl.load(x + channel, mask=inside, other=0.0)
    shift = shift.to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = number * tiles_per_slice * BLOCK_R
    for tile in range(tiles_per_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok, place = _places(row, rows, channel, n_channels)
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - shift[None, :], 0.0)
        total += value
        square += value * value
    _put(partials, total, square, BLOCK_C)
    if _is_last(counter, group, _n_slices(group, n_first)):
        total_all, square_all = _group_sums(partials, group, n_first, BLOCK_P, BLOCK_C)
        offset = total_all / rows
        var = _clamped(square_all / rows - offset * offset)
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
                        n_rows2,
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
                    n_rows,
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
    x2,
    residual,
    residual2,
    y,
    y2,
    mean_in,
    rstd_in,
    weight_in,
    weight2_in,
    bias_in,
    bias2_in,
    n_rows,
    n_rows2,
    n_first,
    n_channels,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Normalise a tile, add the residual, and apply the ReLU."""
    group, rows, number = _group(n_rows, n_rows2, n_first)
    x = _of_group(group, x, x2)
    residual = _of_group(group, residual, residual2)
    y = _of_group(group, y, y2)
    weight_in = _of_group(group, weight_in, weight2_in)
    bias_in = _of_group(group, bias_in, bias2_in)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = number * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    own = group * n_channels + channel
    ok, place = _places(row, rows, channel, n_channels)
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
    grad2,
    x,
    x2,
    y,
    y2,
    mean_in,
    rstd_in,
    weight_in,
    weight2_in,
    bias_in,
    bias2_in,
    partials,
    counter,
    grad_weight,
    grad_bias,
    n_rows,
    n_rows2,
    n_first,
    n_channels,
    tiles_per_slice,
    MASK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of weight and bias."""
    group, rows, number = _group(n_rows, n_rows2, n_first)
    grad = _of_group(group, grad, grad2)
    x = _of_group(group, x, x2)
    y = _of_group(group, y, y2)
    weight_in = _of_group(group, weight_in, weight2_in)
    bias_in = _of_group(group, bias_in, bias2_in)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < n_channels
    own = group * n_channels + channel
    mean, rstd = _pair(mean_in, rstd_in, own, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    start = number * tiles_per_slice * BLOCK_R
    for tile in range(tiles_per_slice):
        row = start + tile * BLOCK_R + tl.arange(0, BLOCK_R)
        ok, place = _places(row, rows, channel, n_channels)
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
    grad2,
    x,
    x2,
    y,
    y2,
    mean_in,
    rstd_in,
    weight_in,
    weight2_in,
    bias_in,
    bias2_in,
    grad_weight,
    grad_bias,
    grad_x,
    grad_x2,
    grad_residual,
    grad_residual2,
    n_rows,
    n_rows2,
    n_first,
    n_channels,
    MASK: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of the input and of the residual."""
    group, rows, number = _group(n_rows, n_rows2, n_first)
    grad = _of_group(group, grad, grad2)
    x = _of_group(group, x, x2)
    y = _of_group(group, y, y2)
    weight_in = _of_group(group, weight_in, weight2_in)
    bias_in = _of_group(group, bias_in, bias2_in)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = number * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = channel < n_channels
    own = group * n_channels + channel
    ok, place = _places(row, rows, channel, n_channels)
    mean, rstd = _pair(mean_in, rstd_in, own, inside)
    weight, bias = _pair(weight_in, bias_in, channel, inside)
    total, product = _pair(grad_bias, grad_weight, own, inside)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    normal = (value - mean[None, :]) * rstd[None, :]
    g = _tile_gradient(grad, y, place, ok, normal, weight, bias, MASK)
    centred = g - (total[None, :] + normal * product[None, :]) / rows
    # Chosen late: fewer registers.
    grad_x = _of_group(group, grad_x, grad_x2)
    tl.store(grad_x + place, centred * (weight * rstd)[None, :], mask=ok)
    if ADD:
        grad_residual = _of_group(group, grad_residual, grad_residual2)
        tl.store(grad_residual + place, g, mask=ok)
