"""SharpBalance on real pictures: train, corrupt, measure, tabulate.

    python examples/benchmarks/reproduce.py RUN --data cifar10_jpeg.npz [--minutes 9]

RUN is one of: headline, ablation, tradeoff, widths. ``--data`` takes an npz file, an
ImageFolder, or torchvision's CIFAR-10 root. Every fit goes through the public
estimator, writes checkpoints and shares warm-ups through ``memory``; a command that is
out of time stops cleanly, and the same command goes on from there. Each finished
ensemble is one record of ``results/reproduce_RUN.json``.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
from _machine import RESULTS, machine

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    ResNet18,
    SharpBalanceEnsembleClassifier,
    metrics,
)
from sklearn_sharpbalance.corruption import iter_corruptions
from sklearn_sharpbalance.datasets import load_images

RULES = (
    "sharpbalance",
    "reference_boost",
    "reference_union",
    "random",
    "same",
    "all",
    "none",
)
SEEDS = (13, 113, 43)  # one for each of the paper's three seed sets
DEFAULTS = {
    "headline": {"width": 64, "epochs": 200, "rho": 0.2, "seeds": 1},
    "ablation": {"width": 16, "epochs": 60, "rho": 0.1, "seeds": 3},
    "tradeoff": {"width": 16, "epochs": 60, "rho": None, "seeds": 1},
    "widths": {"width": None, "epochs": 60, "rho": None, "seeds": 1},
}


def recipe(options, seed, **changes):
    """Parameters of the paper's recipe, with changes."""
    return {
        "estimator": ResNet18,
        "estimator__module__width": options.width,
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "lr": 0.1,
        "lr_schedule": "steps",
        "batch_size": 128,
        "train_transform": "crop_flip",
        "random_state": seed,
        "memory": str(Path(options.work) / "memory"),
        "checkpoint_every": 20,
        **changes,
    }


def flat(options, seed, **changes):
    """A SharpBalance estimator by the recipe."""
    settings = {"rho": options.rho, "flat_ratio": options.flat_ratio}
    return SharpBalanceEnsembleClassifier(
        **recipe(options, seed, **{**settings, **changes})
    )


def headline(options, seed):
    """Deep ensemble, SAM and SharpBalance; the last two share their warm-up."""
    yield "deep ensemble", DeepEnsembleClassifier(**recipe(options, seed))
    yield "SAM", flat(options, seed, selection="all")
    yield "sharpbalance", flat(options, seed)


def ablation(options, seed):
    """Every selection rule from one warm-up, warm-ups, and equal gradient cost."""
    for rule in RULES:
        yield rule, flat(options, seed, selection=rule)
    for rule in ("sharpbalance", "reference_boost"):
        yield f"{rule}, SGD warm-up", flat(options, seed, selection=rule, warmup="sgd")
    for share in (0.75, 0.875):
        yield f"sharpbalance, T_d {share}", flat(options, seed, warmup_epochs=share)
    deep = recipe(options, seed)
    yield "deep ensemble", DeepEnsembleClassifier(**deep)
    longer = deep | {"max_epochs": round(1.83 * options.epochs)}
    yield "deep ensemble, cost of sharpbalance", DeepEnsembleClassifier(**longer)
    more = deep | {"n_estimators": round(1.83 * options.members)}
    yield "deep ensemble, members for the cost", DeepEnsembleClassifier(**more)


def tradeoff(options, seed):
    """SAM ensembles and SharpBalance over rho."""
    for rho in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4):
        yield f"SAM rho {rho}", flat(options, seed, selection="all", rho=rho)
        yield f"sharpbalance rho {rho}", flat(options, seed, rho=rho)


def widths(options, seed):
    """SAM ensembles over width and rho."""
    for width in (8, 16, 32, 64):
        for rho in (0.02, 0.1, 0.4):
            changes = {"estimator__module__width": width, "rho": rho}
            name = f"SAM width {width} rho {rho}"
            yield name, flat(options, seed, selection="all", **changes)


RUNS = {f.__name__: f for f in (headline, ablation, tradeoff, widths)}


def read_data(path):
    """Training and test pictures with labels."""
    path = Path(path)
    if path.suffix == ".npz":
        name = "npz"
    elif (path / "cifar-10-batches-py").exists():
        name = "cifar10"
    else:
        name = "imagefolder"
    train, test = (load_images(name, path, split=s) for s in ("train", "test"))
    return train.images, train.labels, test.images, test.labels


class Evaluation:
    """Measures ensembles on clean and corrupted test pictures, drawn up once."""

    def __init__(self, X, y, n_corrupted):
        self.X, self.y = X, y
        few = slice(0, n_corrupted)
        self.corrupted = list(iter_corruptions(X[few], random_state=0, n_jobs=-1))
        self.few = y[few]

    def __call__(self, clf):
        codes = np.searchsorted(clf.classes_, self.y)
        member_probas, proba = both(clf, self.X)
        return {
            "member_accuracy": float((member_probas.argmax(-1) == codes).mean()),
            "accuracy": float((proba.argmax(-1) == codes).mean()),
            "nll": metrics.negative_log_likelihood(codes, proba),
            "ece": metrics.expected_calibration_error(codes, proba),
            "der": metrics.disagreement_error_ratio(codes, member_probas),
            "variance": metrics.variance_diversity(member_probas),
            "kl": metrics.kl_diversity(member_probas),
            "eir": metrics.ensemble_improvement_rate(
                codes, member_probas, ensemble_proba=proba
            ),
            "sharpness": float(
                metrics.adaptive_sharpness(clf, self.X, self.y, random_state=0)
            ),
            **self.on_corruptions(clf),
        }

    def on_corruptions(self, clf):
        """Accuracy of members and ensemble by kind and severity."""
        codes = np.searchsorted(clf.classes_, self.few)
        table = {}
        for kind, severity, images in self.corrupted:
            member_probas, proba = both(clf, images)
            table.setdefault(kind, {})[severity] = (
                float((member_probas.argmax(-1) == codes).mean()),
                float((proba.argmax(-1) == codes).mean()),
            )
        values = np.array([list(rows.values()) for rows in table.values()])  # (K, 5, 2)
        return {
            "member_corrupted_accuracy": float(values[..., 0].mean()),
            "corrupted_accuracy": float(values[..., 1].mean()),
            "corrupted_by_severity": values[..., 1].mean(axis=0).tolist(),
            "corrupted": table,
        }


def both(clf, X):
    """Probabilities of the members and of the ensemble from one pass."""
    from scipy.special import softmax

    logits = clf.member_decision_function(X).astype(np.float64)
    return softmax(logits, axis=-1), clf.aggregation_.combine(logits)


def run_jobs(options, data):
    """Fit and measure what has no record yet; returns whether all is done."""
    X, y, X_test, y_test = data
    path = Path(options.out) / f"reproduce_{options.run}.json"
    records = json.loads(path.read_text())["records"] if path.exists() else []
    done = {(r["method"], r["seed"]) for r in records}
    evaluation = None
    for seed in SEEDS[: options.seeds]:
        for method, clf in RUNS[options.run](options, seed):
            if (method, seed) in done:
                continue
            evaluation = evaluation or Evaluation(X_test, y_test, options.corrupted)
            folder = (
                Path(options.work) / options.run / f"{method}_{seed}".replace(" ", "_")
            )
            start = time.perf_counter()
            clf.set_params(checkpoint_dir=str(folder)).fit(X, y)
            fitted = time.perf_counter() - start
            record = {"method": method, "seed": seed, **evaluation(clf)}
            record["sam_share"] = float(clf.sam_masks_.mean())
            record["epoch_seconds"] = sum(r["dur"] for r in clf.history_[0])
            record["fit_seconds"] = fitted
            record["engine"] = clf.engine_.name
            records.append(record)
            write(path, options, records)
            print_record(record)


def write(path, options, records):
    """All records so far, with machine and settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        k: v for k, v in vars(options).items() if k not in ("out", "work", "data")
    }
    result = {"machine": machine(), "settings": settings, "records": records}
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(records))


def markdown(records):
    """One row per method: mean over seeds, and the spread where there are several."""
    columns = {
        "member_accuracy": 100,
        "accuracy": 100,
        "member_corrupted_accuracy": 100,
        "corrupted_accuracy": 100,
        "nll": 1,
        "ece": 1,
        "der": 1,
        "eir": 1,
        "sharpness": 1,
        "sam_share": 1,
    }
    lines = ["| method | seeds | " + " | ".join(columns) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for method in dict.fromkeys(r["method"] for r in records):
        rows = [r for r in records if r["method"] == method]
        cells = []
        for name, scale in columns.items():
            values = scale * np.array([r[name] for r in rows])
            digits = 2 if scale == 100 else 4
            spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.{digits}f}{spread}")
        lines.append(f"| {method} | {len(rows)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def print_record(record):
    shown = ("method", "seed", "member_accuracy", "accuracy", "corrupted_accuracy")
    print({k: record[k] for k in (*shown, "der", "fit_seconds")}, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=str(RESULTS))
    parser.add_argument("--work", default="reproduce_work", help="checkpoints, cache")
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--width", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--rho", type=float)
    parser.add_argument("--flat-ratio", type=float, default=0.4)
    parser.add_argument("--images", type=int, help="train on the first so many only")
    parser.add_argument("--corrupted", type=int, default=10_000)
    options = parser.parse_args()
    for name, value in DEFAULTS[options.run].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.minutes is not None:

        def out_of_time(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, out_of_time)
        signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    X, y, X_test, y_test = read_data(options.data)
    try:
        run_jobs(options, (X[: options.images], y[: options.images], X_test, y_test))
    except KeyboardInterrupt:
        print("Out of time; the same command goes on from the last checkpoint.")
        sys.exit(3)


if __name__ == "__main__":
    main()
