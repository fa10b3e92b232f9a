"""GPU: the fused BatchNorm kernels against PyTorch's, and against other settings.

    python examples/benchmarks/bench_norms.py [--out DIR]

Microseconds of a replayed CUDA graph for the layers of a ResNet-18 at batch 128 in bf16:
forward with ReLU, backward of that, and backward of a norm with a residual.
"""

import argparse
from itertools import product

import torch
from _machine import write
from torch import nn
from triton.testing import do_bench

from sklearn_sharpbalance.engine.graph import norm_kernels
from sklearn_sharpbalance.engine.graph.fused_norms import NormStep

LAYERS = ((64, 32), (128, 16), (256, 8), (512, 4), (16, 32))  # channels, side
SETTINGS = {
    "TILE": (2048, 4096),
    "N_WARPS": (4,),
    "N_PARTIALS": (32, 64, 128),
    "N_PROGRAMS": (132, 264, 528),
}


def microseconds(call):
    """Median time of a captured call."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return 1e3 * do_bench(graph.replay, warmup=2, rep=10, return_mode="median")


def tensors(channels, side, n=3):
    """Pictures, as many as asked for, and a layer for them."""
    shape = (128, channels, side, side)
    made = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(
            memory_format=torch.channels_last
        )
        for _ in range(n)
    ]
    return *made, NormStep(nn.BatchNorm2d(channels).cuda(), relu=True)


def by_kernels(channels, side):
    """Forward, backward, backward with a residual."""
    x, residual, grad, step = tensors(channels, side)
    norm = step.norm
    common = {"x": x, "counter": step.counter, "relu": True}

    def forward(residual):
        return norm_kernels.forward(residual=residual, norm=norm, **common)

    y, mean, rstd = forward(residual)

    def backward(y, add):
        norm_kernels.backward(
            grad=grad,
            y=y,
            mean=mean,
            rstd=rstd,
            weight=norm.weight,
            bias=norm.bias,
            add=add,
            **common,
        )

    return [
        microseconds(lambda: forward(None)),
        microseconds(lambda: backward(None, add=False)),
        microseconds(lambda: backward(y, add=True)),
    ]


def by_torch(channels, side):
    """Forward with ReLU by PyTorch's own layers."""
    x, step = tensors(channels, side, n=1)
    step.norm.num_batches_tracked = None
    with torch.no_grad():
        return [microseconds(lambda: torch.relu(step.norm(x)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    options = parser.parse_args()
    names = [f"{channels} x {side} x {side}" for channels, side in LAYERS]
    default = {key: getattr(norm_kernels, key) for key in SETTINGS}
    times = {"PyTorch": [by_torch(*layer) for layer in LAYERS]}
    for values in product(*SETTINGS.values()):
        settings = dict(zip(SETTINGS, values))
        for key, value in settings.items():
            setattr(norm_kernels, key, value)
        label = ", ".join(f"{key} {value}" for key, value in settings.items())
        times[label] = [by_kernels(*layer) for layer in LAYERS]
        total = sum(map(sum, times[label]))
        print(f"{total:7.1f} us in all  {label}", flush=True)
    write(
        "norms",
        {"layers": names, "default": default, "microseconds": times},
        options.out,
    )


if __name__ == "__main__":
    main()
