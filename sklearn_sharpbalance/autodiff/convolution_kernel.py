"""Squared norms of a convolution's weight gradients in one kernel, for GPUs.

Matrix products write each sample's gradient to memory, and read it again to square it.
A program of this kernel keeps one tile of it in registers, and writes one number.
"""

import torch
import triton
import triton.language as tl

__all__ = ["kernel_squared_norms"]


def kernel_squared_norms(axes, x, g):
    """Return squared norms (B,) for ``x`` (B, C, H, W) and ``g`` (B, Q, H', W').

    Parameters
    ----------
    axes : sequence of two Axis
    x, g : Tensor of one dtype: bfloat16, float16 or float32
    """
    x, g = (z.contiguous(memory_format=torch.channels_last) for z in (x, g))
    rows, columns = axes
    n_c, n_q = x.shape[1], g.shape[1]
    block_c, block_q = (
        min(128, max(16, triton.next_power_of_2(n))) for n in (n_c, n_q)
    )
    n_c_blocks, n_q_blocks = triton.cdiv(n_c, block_c), triton.cdiv(n_q, block_q)
    n_taps = len(rows.offsets) * len(columns.offsets)
    n_programs = n_taps * n_c_blocks * n_q_blocks  # of a sample
    norms = torch.empty((len(x), n_programs), dtype=torch.float32, device=x.device)
    tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    with torch.cuda.device(x.device if x.is_cuda else -1):
        _tap_norms[(norms.numel(),)](
            x,
            g,
            norms,
            *(x.stride(i) for i in (0, 2, 3)),
            *(g.stride(i) for i in (0, 2, 3)),
            n_c,
            n_q,
            rows.n_in,
            columns.n_in,
            rows.n_out * columns.n_out,
            columns.n_out,
            rows.stride,
            columns.stride,
            rows.offsets.start,
            columns.offsets.start,
            rows.offsets.step,
            columns.offsets.step,
            len(columns.offsets),
            n_c_blocks,
            n_q_blocks,
            n_programs,
            PRECISION="tf32" if tf32 else "ieee",
            BLOCK_T=32 if x.dtype == torch.float32 else 64,
            BLOCK_C=block_c,
            BLOCK_Q=block_q,
            num_warps=8 if block_c * block_q >= 128 * 64 else 4,
        )
    return norms.sum(1)


@triton.jit
def _tap_norms(
    x,
    g,
    norms,
    x_sample,
    x_row,
    x_column,
    g_sample,
    g_row,
    g_column,
    n_c,
    n_q,
    n_rows,
    n_columns,
    n_positions,
    n_out_columns,
    row_stride,
    column_stride,
    first_row,
    first_column,
    row_step,
    column_step,
    n_kernel_columns,
    n_c_blocks,
    n_q_blocks,
    n_programs,
    PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    """Write the squared norm of one tile: one kernel entry, some channels each."""
    sample = (tl.program_id(0) // n_programs).to(tl.int64)
    number = tl.program_id(0) % n_programs
    tap = number // (n_c_blocks * n_q_blocks)
    down = first_row + row_step * (tap // n_kernel_columns)
    right = first_column + column_step * (tap % n_kernel_columns)
    c = (number // n_q_blocks) % n_c_blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    q = number % n_q_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    tile = tl.zeros((BLOCK_Q, BLOCK_C), tl.float32)
    for start in range(0, n_positions, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        out_row, out_column = t // n_out_columns, t % n_out_columns
        row = out_row * row_stride + down
        column = out_column * column_stride + right
        exists = t < n_positions
        seen = exists & (row >= 0) & (row < n_rows) & (column >= 0)
        seen = seen & (column < n_columns)
        place = sample * x_sample + row * x_row + column * x_column
        place = place[:, None] + c[None, :]
        ok = seen[:, None] & (c < n_c)[None, :]
        inputs = tl.load(x + place, mask=ok, other=0.0)  # (T, C)
        place = sample * g_sample + out_row * g_row + out_column * g_column
        place = place[:, None] + q[None, :]
        ok = exists[:, None] & (q < n_q)[None, :]
        gradients = tl.load(g + place, mask=ok, other=0.0)  # (T, Q)
        tile = tl.dot(tl.trans(gradients), inputs, tile, input_precision=PRECISION)
    tl.store(norms + tl.program_id(0), tl.sum(tl.sum(tile * tile, axis=1), axis=0))
