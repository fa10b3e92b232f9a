"""Searches: EnsembleSearchCV against GridSearchCV, side by side in one run.

    python examples/benchmarks/bench_search.py [--parts digits table pictures]
        [--device auto] [--repeats 1] [--quick] [--out DIR]

Three values of ``rho`` and three of ``flat_ratio``. Searches alternate, and the ratio
is that of the medians. On a CPU the ratio of the processor time is less affected by
other processes than that of the wall-clock time. ``pictures`` needs a GPU. Results on
a GPU are written to ``search_gpu.json``, others to ``search.json`` or, on aarch64,
``search_aarch64.json``; parts that were measured on the same machine before are kept.
"""

import argparse
import gc
import json
import time
from pathlib import Path

import numpy as np
import torch
from _machine import RESULTS, by_processor, machine, write
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance import ResNet18, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.model_selection import EnsembleSearchCV
from sklearn_sharpbalance.runtime.devices import resolve_device

GRID = {"rho": [0.02, 0.05, 0.1], "flat_ratio": [0.2, 0.4, 0.6]}


def digits(device, quick):
    """The default network on digits, five folds."""
    clf = SharpBalanceEnsembleClassifier(
        random_state=0, device=device, max_epochs=6 if quick else None
    )
    return clf, *load_digits(return_X_y=True), 5


def table(device, quick):
    """The default network on a table of 10,000 x 50, five folds."""
    X, y = make_classification(
        1000 if quick else 10_000, 50, n_informative=20, n_classes=5, random_state=0
    )
    clf = SharpBalanceEnsembleClassifier(
        random_state=0, device=device, max_epochs=4 if quick else 10
    )
    return clf, X, y, 5


def pictures(device, quick):
    """A narrow ResNet-18 on 10,000 pictures, SGD warm-up, three folds."""
    rng = np.random.default_rng(0)
    n_samples = 300 if quick else 10_000
    X = rng.integers(0, 256, size=(n_samples, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(0, 10, size=n_samples)
    X[np.arange(n_samples), 0, y, :] = 255  # a row that depends on the class
    clf = SharpBalanceEnsembleClassifier(
        ResNet18,
        estimator__module__width=16,
        sam="sam",
        warmup="sgd",
        train_transform=None,
        random_state=0,
        device=device,
        max_epochs=2 if quick else 10,
    )
    return clf, X, y, 3


PARTS = {"digits": digits, "table": table, "pictures": pictures}


def allocated(device):
    """Return bytes on the GPU that are in use; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    gc.collect()
    return torch.cuda.memory_allocated()


def measure(part, device, *, repeats, quick):
    """Return the times of both searches, and how far their scores are apart."""
    clf, X, y, n_folds = PARTS[part](device, quick)
    kinds = {"GridSearchCV": GridSearchCV, "EnsembleSearchCV": EnsembleSearchCV}
    one = {name: values[:1] for name, values in GRID.items()}
    for kind in kinds.values():  # load libraries, capture nothing
        kind(clf.__class__(**clf.get_params()).set_params(max_epochs=2), one, cv=2).fit(
            X[:200], y[:200]
        )
    wall: dict[str, list] = {name: [] for name in kinds}
    processor: dict[str, list] = {name: [] for name in kinds}
    scores, memory = {}, {}
    for _ in range(repeats):
        for name, kind in kinds.items():
            before = allocated(device)
            search = kind(clf, GRID, cv=n_folds, refit=False)
            start, start_cpu = time.perf_counter(), time.process_time()
            search.fit(X, y)
            wall[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - start_cpu)
            scores[name] = search.cv_results_["mean_test_score"]
            if name == "EnsembleSearchCV":
                trained = sorted({fit.training for fit in search.plan_})
            del search
            memory[name] = (before, allocated(device))
    theirs, ours = (float(np.median(wall[name])) for name in kinds)
    theirs_cpu, ours_cpu = (float(np.median(processor[name])) for name in kinds)
    difference = np.abs(scores["GridSearchCV"] - scores["EnsembleSearchCV"])
    return {
        "search": f"{len(X)} samples, 3 x 3 x {n_folds}",
        "device": device,
        "training": trained,
        "grid_seconds": theirs,
        "ensemble_seconds": ours,
        "ratio": ours / theirs,
        "processor_ratio": ours_cpu / theirs_cpu,
        "largest_difference_of_scores": float(difference.max()),
        "allocated_before_and_after": memory["EnsembleSearchCV"],
        "repeats": repeats,
    }


def measured_before(path):
    """Return the parts in a file of results, if it is of this machine."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return found if found.pop("machine") == machine() else {}


def main():
    """Measure the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    device = resolve_device(options.device)
    on_gpu = torch.device(device).type == "cuda"
    parts = options.parts or (list(PARTS) if on_gpu else ["digits"])
    name = "search_gpu" if on_gpu else by_processor("search")
    numbers = measured_before(Path(options.out or RESULTS) / f"{name}.json")
    for part in parts:
        numbers[part] = measure(
            part, device, repeats=options.repeats, quick=options.quick
        )
        write(name, numbers, options.out)


if __name__ == "__main__":
    main()
