"""Theorems 1 and 2 against simulated models: how long it takes, how well it fits.

    python examples/benchmarks/bench_theory.py

Runs the paper's simulation (50 matrices of 3000 x 150 with 50 starts each) on the grids
of its figures 10 and 11, and holds both variants of the formulas against it.
"""

import json
import os
import platform
import time
from itertools import product
from pathlib import Path

import numpy as np

from sklearn_sharpbalance.theory import (
    sam_diversity,
    sam_sharpness_bounds,
    simulate,
    subset_diversity,
    subset_sharpness_bound,
)

RESULTS = Path(__file__).parent / "results" / "theory.json"
SIZES = {"n": 3000, "d": 150}
RADIUS = 0.5
GRIDS = {
    "theorem_1": (1, list(product((2, 4, 8), (0.1, 0.05, 0.01), (0.3, 0.4, 0.5)))),
    "theorem_2": (10, list(product((4, 8, 12), (0.5, 0.3, 0.1), (0.4, 0.7, 1.0)))),
}


def predict(k, eta, rho, parts, variant):
    """Diversity, lower and upper bound of the sharpness."""
    common = {"eta": eta, "rho": rho, "variant": variant, **SIZES}
    if parts == 1:
        bounds = sam_sharpness_bounds(k, radius=RADIUS, **common)
        return sam_diversity(k, **common), *bounds
    common["n_subsets"] = parts
    upper = subset_sharpness_bound(k, radius=RADIUS, **common)
    return subset_diversity(k, **common), 0.0, upper


def compare(parts, points):
    start = time.perf_counter()
    k, eta, rho = map(np.array, zip(*points))
    settings = {"radius": RADIUS, "n_subsets": parts, "random_state": 0, **SIZES}
    run = simulate(k, eta, rho, **settings)
    report = {
        "points": len(points),
        "seconds": round(time.perf_counter() - start, 2),
        "largest_standard_error_of_diversity": _worst(
            run.diversity_error / run.diversity
        ),
    }
    for variant in ("derived", "printed"):
        predicted = np.array([predict(*p, parts, variant) for p in points]).T
        diversity, lower, upper = predicted
        inside = (lower <= run.sharpness) & (run.sharpness <= upper)
        report[variant] = {
            "share_within_bounds": round(float(inside.mean()), 3),
            "largest_error_of_diversity": _worst(run.diversity / diversity - 1),
            "median_error_of_diversity": round(
                float(np.median(np.abs(run.diversity / diversity - 1))), 4
            ),
            "median_upper_bound_over_sharpness": round(
                float(np.median(upper / run.sharpness)), 4
            ),
        }
    return report


def _worst(values):
    return round(float(np.abs(values).max()), 4)


def main():
    report = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    start = time.perf_counter()
    simulate(4, 0.05, 0.3, random_state=0, **SIZES)
    report["seconds_for_one_setting"] = round(time.perf_counter() - start, 2)
    for name, (parts, points) in GRIDS.items():
        report[name] = compare(parts, points)
    print(json.dumps(report, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
