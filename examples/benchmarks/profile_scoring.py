"""Where the time of the Fisher trace goes on a GPU.

    python examples/benchmarks/profile_scoring.py [--width 64] [--images 50000]

Seconds and images per second for a ResNet-18 in bf16, by samples at a time, beside a
forward and backward pass of training over the same images; then the kernels of a chunk
by kind.
"""

import argparse
import time

import torch
from _kernels import by_kind
from _machine import write
from skorch import NeuralNetClassifier
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from sklearn_sharpbalance import ResNet18
from sklearn_sharpbalance.sharpness import FisherTraceScorer

CHUNKS = (1024, 2048, 4096)


def seconds(call, size):
    """Time of the second call: the first compiles and allocates."""
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(size)
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--out")
    options = parser.parse_args()
    X = torch.randn(options.images, 3, 32, 32, device="cuda")
    y = torch.randint(10, (options.images,), device="cuda")
    net = NeuralNetClassifier(
        ResNet18,
        module__width=options.width,
        criterion=torch.nn.CrossEntropyLoss,
        device="cuda",
    ).initialize()
    net.module_.to(memory_format=torch.channels_last)

    def score(chunk_size, n=options.images):
        with torch.autocast("cuda", torch.bfloat16):
            FisherTraceScorer(chunk_size=chunk_size).score_samples(net, X[:n], y[:n])

    def train(batch):
        net.module_.train()
        for part in zip(X.split(batch), y.split(batch)):
            with torch.autocast("cuda", torch.bfloat16):
                loss = cross_entropy(net.module_(part[0]), part[1])
            loss.backward()

    found = {"settings": {k: v for k, v in vars(options).items() if k != "out"}}
    found["training_seconds"] = {b: seconds(train, b) for b in (128, *CHUNKS)}
    print(found, flush=True)
    times = {chunk: seconds(score, chunk) for chunk in CHUNKS}
    found["seconds"] = times
    found["images_per_second"] = {c: options.images / times[c] for c in CHUNKS}
    found["over_training"] = {
        c: times[c] / found["training_seconds"][c] for c in CHUNKS
    }
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        score(CHUNKS[0], CHUNKS[0])
        torch.cuda.synchronize()
    found |= by_kind(profiled.key_averages(), 1, "chunk")
    print(found, flush=True)
    write("scoring", found, options.out)


if __name__ == "__main__":
    main()
