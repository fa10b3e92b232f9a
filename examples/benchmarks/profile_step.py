"""Where the time of a captured step goes, by kind of kernel.

    python examples/benchmarks/profile_step.py [--width 64] [--batch 128] [--rule all]

Trains three ResNet-18 on random pictures for a few short epochs, times the steps of one
and profiles those of the next. Kernels of different members overlap, so their times sum
up to more than the step takes. ``--layers plain`` leaves BatchNorm to PyTorch,
``--layers compiled`` lets torch.compile fuse.
"""

import argparse
import time

import numpy as np
import torch
from _kernels import by_kind
from _machine import write
from torch.profiler import ProfilerActivity, profile

from sklearn_sharpbalance import ResNet18, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.engine.graph import engine as graph_engine
from sklearn_sharpbalance.engine.graph import fused_norms
from sklearn_sharpbalance.engine.graph.step import GraphedStep

LAYERS = ("fused", "plain", "compiled")
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
        self.found |= by_kind(profiled.key_averages(), n_steps, "step")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rule", default="all")
    parser.add_argument("--layers", choices=LAYERS, default="fused")
    parser.add_argument("--out")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    n = 60 * options.batch
    X = rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8)
    clf = SharpBalanceEnsembleClassifier(
        ResNet18,
        estimator__module__width=options.width,
        estimator__compile=options.layers == "compiled",
        n_estimators=3,
        max_epochs=PROFILED,
        sam="sam",
        warmup_epochs=0,
        selection=options.rule,
        batch_size=options.batch,
        train_transform="crop_flip",
        device="cuda",
        engine="graph",
        precision="bf16",
        random_state=0,
    )
    graph_engine.GraphedStep = ProfiledStep
    if options.layers == "plain":
        fused_norms.kernels_run_on = lambda device: False
    clf.fit(X, rng.integers(10, size=n))
    settings = {k: v for k, v in vars(options).items() if k != "out"}
    name = f"profile_{options.layers}_{options.width}_{options.rule}_{options.batch}"
    write(name, {"settings": settings, **ProfiledStep.found}, options.out)


if __name__ == "__main__":
    main()
