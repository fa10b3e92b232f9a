"""Peak memory of a fit, against data, members and the way they train.

    python examples/benchmarks/bench_memory.py [--out DIR]

Every fit runs in a process of its own; its number is the highest resident memory during
``fit`` beyond that before it, when the data lay in memory already. Slopes over the size
of the data and over the number of members say what each of them costs:

    peak = a * data + M * b * weights + c

with the bytes of X as float32, and the bytes of one member's weights. Momentum is as
large as the weights, the two moments of Adam are twice as large. A process of
``n_jobs=2`` is reported apart: what it takes beyond the pages it shares.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
import time

import joblib
import numpy as np
import psutil
import torch
from _machine import write

from sklearn_sharpbalance import MLP, SharpBalanceEnsembleClassifier

FEATURES, WIDTH = 2000, 400
MB = 1e6


class Alone(MLP):
    """The same network; a forward pass of its own keeps it from being stacked."""

    def forward(self, x):
        return super().forward(x)


def data(megabytes):
    n = int(megabytes * MB / 4 / FEATURES)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, FEATURES), dtype=np.float32)
    return X, (X[:, 0] > 0).astype(np.int64)


def ensemble(n_members, engine, optimizer="SGD", **params):
    return SharpBalanceEnsembleClassifier(
        None if engine == "stacked" else Alone,
        n_members,
        optimizer=getattr(torch.optim, optimizer),
        lr=1e-3,
        max_epochs=2,
        engine=engine,
        device="cpu",
        random_state=0,
        estimator__module__hidden=(WIDTH,),
        **params,
    )


def own_bytes(process):
    """Bytes that a process holds for itself: pages of mapped files are not counted."""
    memory = process.memory_info()
    return memory.rss - memory.shared


class Workers(threading.Thread):
    """Looks at child processes until told to stop; keeps what the largest one held."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.done = 0, threading.Event()

    def run(self):
        while not self.done.wait(0.02):
            for child in psutil.Process().children(recursive=True):
                try:
                    self.peak = max(self.peak, own_bytes(child))
                except psutil.Error:
                    continue


def measure(megabytes, n_members, engine, n_jobs=None, **params):
    """Megabytes of one fit, in this process."""
    torch.set_num_threads(1)
    ensemble(1, engine).set_params(estimator__module__hidden=(8,)).fit(*data(1))
    X, y = data(megabytes)
    clf, workers = ensemble(n_members, engine, **params), Workers()
    workers.start()
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    with joblib.parallel_config(n_jobs=n_jobs):
        clf.fit(X, y)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workers.done.set()
    weights = clf.estimators_[0].module_.module.parameters()
    found = {
        "peak_mb": (peak - before) / MB,
        "data_mb": X.nbytes / MB,
        "weights_mb": sum(4 * w.numel() for w in weights) / MB,
        "seconds": time.perf_counter() - start,
    }
    if n_jobs is not None:
        found["largest_worker_mb"] = workers.peak / MB
    return {name: round(value, 1) for name, value in found.items()}


def in_a_process(**setting):
    command = [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(setting)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(setting, found, flush=True)
    return {**setting, **found}


def slopes(engine, optimizer="SGD"):
    """Costs of data and of a member, from three fits."""
    few = {"engine": engine, "optimizer": optimizer}
    base = in_a_process(megabytes=10, n_members=2, **few)
    more_data = in_a_process(megabytes=40, n_members=2, **few)
    more_members = in_a_process(megabytes=10, n_members=6, **few)

    def slope(other, over):
        return (other["peak_mb"] - base["peak_mb"]) / over

    per_byte = slope(more_data, more_data["data_mb"] - base["data_mb"])
    per_weight = slope(more_members, 4 * base["weights_mb"])
    rest = base["peak_mb"] - per_byte * base["data_mb"]
    return {
        "fits": [base, more_data, more_members],
        "times_data": round(per_byte, 2),
        "times_weights_per_member": round(per_weight, 2),
        "rest_mb": round(rest - 2 * per_weight * base["weights_mb"], 1),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=None)
    parser.add_argument("--one", default=None, help="settings of one fit, as JSON")
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(**json.loads(args.one))))
        return
    numbers = {
        "stacked": slopes("stacked"),
        "skorch": slopes("skorch"),
        "skorch_adamw": slopes("skorch", "AdamW"),
        "two_processes": [
            in_a_process(megabytes=size, n_members=2, engine="skorch", n_jobs=2)
            for size in (10, 40)
        ],
    }
    write("memory", numbers, args.out)


if __name__ == "__main__":
    main()
