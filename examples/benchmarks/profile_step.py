"""Where the time of a captured step goes, by kind of kernel.

    python examples/benchmarks/profile_step.py [--width 64] [--batch 128] [--rule all]

Trains three ResNet-18 on random pictures for a few short epochs, times the steps of one
and profiles those of the next. Kernels of different members overlap, so their times sum
up to more than the step takes. ``--layers plain`` leaves BatchNorm to PyTorch,
``--layers compiled`` lets torch.compile fuse.
"""

import argparse
import time
from collections import Counter

import numpy as np
import torch
from _machine import write
from torch.profiler import ProfilerActivity, profile

from sklearn_sharpbalance import ResNet18, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.engine import graph_run
from sklearn_sharpbalance.engine.graph_step import GraphedStep

KINDS = {  # the first whose words are in a kernel's name
    "norm": ("batch_norm", "statistics", "normalise", "gradient", "native_batch"),
    "convolution": ("fprop", "dgrad", "wgrad", "conv", "xmma", "cutlass", "splitK"),
    "weights": ("multi_tensor", "lpnorm"),
    "fused by the compiler": ("triton_",),
    "elementwise": ("elementwise", "fill", "Memset", "Memcpy"),
}
COMPILE = {"fused": None, "plain": False, "compiled": True}
TIMED, PROFILED = 3, 4  # epochs


class ProfiledStep(GraphedStep):
    """Times the third call of ``run`` and profiles the fourth."""

    found: dict = {}
    n_calls = 0

    def run(self, first, n_steps):
        """Make the steps, and look at them."""
        type(self).n_calls += 1
        if self.n_calls not in (TIMED, PROFILED):
            super().run(first, n_steps)
            return
        torch.cuda.synchronize()
        start = time.perf_counter()
        if self.n_calls == TIMED:
            super().run(first, n_steps)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            self.found["milliseconds_per_step"] = 1e3 * seconds / n_steps
            return
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            super().run(first, n_steps)
            torch.cuda.synchronize()
        self.found |= by_kind(profiled.key_averages(), n_steps)


def kind_of(name):
    """The kind of a kernel."""
    for kind, words in KINDS.items():
        if any(word in name for word in words):
            return kind
    return "other"


def by_kind(events, n_steps):
    """Launches and milliseconds per step, of each kind and of the longest kernels."""
    launches, spent = Counter(), Counter()
    for event in events:
        kind = kind_of(event.key)
        launches[kind] += event.count / n_steps
        spent[kind] += event.self_device_time_total / n_steps / 1e3
    longest = sorted(events, key=lambda event: -event.self_device_time_total)[:15]
    return {
        "launches_per_step": dict(launches),
        "kernel_milliseconds_per_step": dict(spent),
        "longest": {
            event.key[:100]: event.self_device_time_total / n_steps / 1e3
            for event in longest
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rule", default="all")
    parser.add_argument("--layers", choices=COMPILE, default="fused")
    parser.add_argument("--out")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    n = 60 * options.batch
    X = rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8)
    clf = SharpBalanceEnsembleClassifier(
        ResNet18,
        estimator__module__width=options.width,
        estimator__compile=COMPILE[options.layers],
        n_estimators=3,
        max_epochs=PROFILED,
        warmup_epochs=0,
        selection=options.rule,
        batch_size=options.batch,
        train_transform="crop_flip",
        device="cuda",
        engine="graph",
        precision="bf16",
        random_state=0,
    )
    graph_run.GraphedStep = ProfiledStep
    clf.fit(X, rng.integers(10, size=n))
    settings = {k: v for k, v in vars(options).items() if k != "out"}
    name = f"profile_{options.layers}_{options.width}_{options.rule}"
    write(name, {"settings": settings, **ProfiledStep.found}, options.out)


if __name__ == "__main__":
    main()
