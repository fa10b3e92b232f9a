"""Threads: a default fit by each setting of torch, on a quiet and on a loaded machine.

    python examples/benchmarks/bench_threads.py [--out DIR]

For every table it prints the seconds of a fit with one thread and with one per core,
as the library chooses and with its choice switched off, and the slowest setting over
the fastest. The load is one busy process per core.
"""

import argparse
import multiprocessing
import os
import time
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from _machine import write
from sklearn.datasets import load_breast_cancer, load_digits, make_classification

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.engine import choice

REPEATS = 3


def tables():
    """Yield the name, samples, labels and epochs of each table."""
    yield "breast cancer", *load_breast_cancer(return_X_y=True), 50
    yield "digits", *load_digits(return_X_y=True), 10
    wide = {"n_samples": 2000, "n_features": 2000, "n_informative": 20}
    yield "2000 x 2000", *make_classification(**wide, random_state=0), 4


@contextmanager
def load(n_processes):
    """Keep this many processes busy."""
    busy = [multiprocessing.Process(target=spin) for _ in range(n_processes)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.terminate()
            process.join()


def spin():
    """Compute until terminated."""
    while True:
        pass


def seconds(X, y, epochs, threads):
    """Return the fastest of some fits with this setting of torch."""
    torch.set_num_threads(threads)
    clf = SharpBalanceEnsembleClassifier(
        max_epochs=epochs, random_state=0, device="cpu"
    )
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        clf.fit(X, y)
        times.append(time.perf_counter() - start)
    return float(np.min(times)), clf.engine_.threads


def main():
    """Measure all tables, settings and loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    options = parser.parse_args()
    cores = os.cpu_count()
    numbers = {}
    for busy in (0, cores):
        for name, X, y, epochs in tables():
            row = {}
            for threads in (1, cores):
                with load(busy):
                    taken, chosen = seconds(X, y, epochs, threads)
                    with mock.patch.object(choice, "choose_threads", return_value=None):
                        free, _ = seconds(X, y, epochs, threads)
                row[f"{threads} threads"], row["chosen"] = taken, chosen
                row[f"{threads} threads, without the choice"] = free
            times = [row["1 threads"], row[f"{cores} threads"]]
            row["slowest over fastest"] = max(times) / min(times)
            numbers[f"{name}, {busy} busy processes"] = row
            print(name, busy, row, flush=True)
    write("threads", numbers, options.out)


if __name__ == "__main__":
    main()
