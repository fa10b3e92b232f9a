"""Speed of the fifteen corruptions, in pictures a second.

    python examples/benchmarks/bench_corruption.py [--n 4000] [--side 32] [--n-jobs 2]

A number is the mean over the five severities, each timed once after a warm-up call.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import PIL
import scipy
from scipy import ndimage

from sklearn_sharpbalance.corruption import CORRUPTIONS, SEVERITIES, corrupt

RESULTS = Path(__file__).parent / "results" / "corruption.json"


def machine():
    model = platform.processor() or platform.machine()
    return {
        "machine": f"{platform.system()} {model}, {os.cpu_count()} cores",
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pillow": PIL.__version__,
    }


def make_pictures(n, side):
    noise = np.random.default_rng(0).standard_normal((n, side, side, 3))
    smooth = ndimage.gaussian_filter(noise, (0, 2, 2, 0))
    return np.clip(128 + 60 * smooth / smooth.std(), 0, 255).astype(np.uint8)


def pictures_per_second(images, name, n_jobs):
    seconds = []
    for severity in SEVERITIES:
        corrupt(images[:64], name, severity, random_state=0, n_jobs=n_jobs)
        start = time.perf_counter()
        corrupt(images, name, severity, random_state=0, n_jobs=n_jobs)
        seconds.append(time.perf_counter() - start)
    return len(images) / np.mean(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--n-jobs", type=int, default=2)
    args = parser.parse_args()
    about = machine()
    print(about)
    images = make_pictures(args.n, args.side)
    rates = {"one_thread": {}, f"{args.n_jobs}_threads": {}}
    for name in CORRUPTIONS:
        for n_jobs, table in zip((1, args.n_jobs), rates.values()):
            table[name] = round(pictures_per_second(images, name, n_jobs))
        print(f"{name:18s}", *(f"{table[name]:>8d}/s" for table in rates.values()))
    medians = {key: float(np.median(list(t.values()))) for key, t in rates.items()}
    print("median", medians)
    report = {
        **about,
        "n_pictures": args.n,
        "side": args.side,
        "median_pictures_per_second": medians,
        "pictures_per_second": rates,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
