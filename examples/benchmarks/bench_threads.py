"""Threads: a default fit by each setting of torch, on a quiet and on a loaded machine.

    python examples/benchmarks/bench_threads.py [--parts fits search] [--out DIR]

For every table it prints the seconds of a fit with one thread and with one per core,
as the library chooses and with its choice switched off, and the slowest setting over
the fastest. The load is one busy process per core. ``search`` is a grid search of 13
small fits in a new process, one after the other and with ``n_jobs=2``: the first one,
which starts the workers, and the next one.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from _machine import RESULTS, write
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.model_selection import GridSearchCV

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


def search(n_jobs):
    """Return the seconds of the first and the second grid search in this process."""
    X, y = load_breast_cancer(return_X_y=True)
    clf = SharpBalanceEnsembleClassifier(max_epochs=10, random_state=0, device="cpu")
    times = []
    for _ in range(2):
        start = time.perf_counter()
        grid = {"rho": [0.02, 0.05, 0.1, 0.2]}
        GridSearchCV(clf, grid, cv=3, n_jobs=n_jobs).fit(X, y)
        times.append(time.perf_counter() - start)
    return times


def searches():
    """Return the seconds of searches in new processes."""
    row = {}
    for n_jobs in (1, 2):
        script = f"from bench_threads import search; print(search({n_jobs}))"
        runs = [
            json.loads(
                subprocess.run(
                    [sys.executable, "-W", "ignore", "-c", script],
                    cwd=Path(__file__).parent,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                ).stdout
            )
            for _ in range(REPEATS)
        ]
        first, second = np.min(runs, axis=0)
        row[f"n_jobs={n_jobs}, first"], row[f"n_jobs={n_jobs}, next"] = first, second
    row["two jobs over one, first"] = row["n_jobs=2, first"] / row["n_jobs=1, first"]
    row["two jobs over one, next"] = row["n_jobs=2, next"] / row["n_jobs=1, next"]
    return row


def fits():
    """Yield the name and the numbers of each table and load."""
    cores = os.cpu_count()
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
            yield f"{name}, {busy} busy processes", row


def main():
    """Measure all tables, settings and loads, and the searches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["fits", "search"])
    parser.add_argument("--out")
    options = parser.parse_args()
    path = Path(options.out or RESULTS) / "threads.json"
    numbers = json.loads(path.read_text()) if path.exists() else {}
    if "fits" in options.parts:
        for name, row in fits():
            numbers[name] = row
            print(name, row, flush=True)
    if "search" in options.parts:
        numbers["search of 13 fits"] = searches()
        print(numbers["search of 13 fits"], flush=True)
    write("threads", numbers, options.out)


if __name__ == "__main__":
    main()
