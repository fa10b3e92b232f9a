"""A fit on small tables, now and at an earlier commit, in turns.

    python examples/benchmarks/bench_small_fits.py [--before COMMIT] [--out DIR]

Fits in new processes: with the defaults of each, and with the same epochs and rule for
both, by torch's default number of threads and by one. For every table it prints the
smallest seconds and processor seconds of each, and before over after. The result is
``small_fits_x86_64.json`` or ``small_fits_aarch64.json``, by the processor. The default
of ``--before`` is the state before training was restructured.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from _machine import write
from sklearn.datasets import load_iris, load_wine

ROOT = Path(__file__).parents[2]
TABLES = {"iris": load_iris, "wine": load_wine}
ROUNDS, FITS = 4, 6
SAME = {"selection": "same", "max_epochs": 40}  # the rule has this name in both
CASES = {
    "defaults": {},
    "same epochs and rule": {"settings": SAME},
    "same epochs and rule, one thread": {"settings": SAME, "n_threads": 1},
}


def fit_seconds(settings=None, n_threads=None):
    """Return the smallest seconds and processor seconds of a fit, by table."""
    import torch

    from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

    if n_threads is not None:
        torch.set_num_threads(n_threads)
    found = {}
    for name, load in TABLES.items():
        X, y = load(return_X_y=True)
        times = []
        for _ in range(1 + FITS):
            clf = SharpBalanceEnsembleClassifier(random_state=0, **settings or {})
            start, start_cpu = time.perf_counter(), time.process_time()
            clf.fit(X, y)
            seconds = time.perf_counter() - start
            times.append((seconds, time.process_time() - start_cpu))
        later = times[1:]  # the first fit imports
        found[name] = {
            "seconds": min(wall for wall, _ in later),
            "processor_seconds": min(processor for _, processor in later),
        }
    return found


def fits_of(folder, case):
    """Run :func:`fit_seconds` in a new process, with the package of a folder."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", case],
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def compare(folders, case):
    """Return the smallest times of both states, and before over after, by table."""
    rounds: dict[str, list] = {state: [] for state in folders}
    for _ in range(ROUNDS):
        for state, folder in folders.items():
            rounds[state].append(fits_of(folder, case))
    result = {}
    for table in TABLES:
        row = {}
        for kind in ("seconds", "processor_seconds"):
            least = {s: min(r[table][kind] for r in rounds[s]) for s in folders}
            row[kind] = least | {"before over after": least["before"] / least["after"]}
        result[table] = row
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default="009f604")
    parser.add_argument("--out")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one side of a comparison
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.case is not None:
        print(json.dumps(fit_seconds(**CASES[options.case])))
        return
    numbers = {"before": options.before}
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        add = [*git, "add", "--quiet", "--detach", folder, options.before]
        subprocess.run(add, check=True)
        try:
            folders = {"before": folder, "after": ROOT}
            numbers |= {case: compare(folders, case) for case in CASES}
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)
    write(f"small_fits_{platform.machine()}", numbers, options.out)


if __name__ == "__main__":
    main()
