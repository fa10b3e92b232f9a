"""CPU: ensembles against scikit-learn's own, side by side in one run.

    python examples/benchmarks/bench_cpu.py [--out DIR] [--quick] [--parts ...]

Three MLPs of 128-128 hidden units, batch 128, momentum SGD, the same epochs for all.
Times are medians of alternating repetitions. The result is ``cpu.json`` on x86-64, and
``cpu_aarch64.json`` on aarch64.
"""

import argparse
import json
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import torch
from _machine import RESULTS, by_processor, write
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    SmallCNN,
    SmallResNet,
)

warnings.simplefilter("ignore", ConvergenceWarning)
# The default network would also encode tables of many rows piecewise.
NETWORK = {
    "estimator": MLP,
    "estimator__module__hidden": (128, 128),
    "batch_size": 128,
}
DROPOUT = {**NETWORK, "estimator__module__dropout": 0.2}


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def side_by_side(calls, repeats):
    """Median time of each call; repetitions alternate so that noise is shared."""
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: float(np.median(values)) for name, values in times.items()}


def bagging(epochs):
    mlp = MLPClassifier(
        (128, 128),
        solver="sgd",
        learning_rate_init=0.1,
        momentum=0.9,
        batch_size=128,
        max_iter=epochs,
        tol=0.0,
        n_iter_no_change=epochs,
        random_state=0,
    )
    return BaggingClassifier(mlp, 3, bootstrap=False, random_state=0)


def against_bagging(X, y, epochs, repeats):
    """Fit times of our ensembles and of Bagging(MLPClassifier) on the same data."""
    # lr brings momentum SGD back, the optimizer of all in this comparison.
    settings = {"lr": 0.1, "max_epochs": epochs, "random_state": 0, "device": "cpu"}
    settings |= NETWORK
    deep = DeepEnsembleClassifier(**settings)
    sharpbalance = SharpBalanceEnsembleClassifier(**settings)
    momentum = {"sam": "momentum_sam", "rho": 0.3, **settings}
    momentum_sam = SharpBalanceEnsembleClassifier(selection="all", **momentum)
    momentum_balanced = SharpBalanceEnsembleClassifier(**momentum)
    look_sam = SharpBalanceEnsembleClassifier(sam="look_sam", **settings)
    skorch_nets = DeepEnsembleClassifier(engine="skorch", **settings)
    scaled = (X - X.mean(0)) / np.maximum(X.std(0), 1e-8)
    times = side_by_side(
        {
            "bagging": lambda: bagging(epochs).fit(scaled, y),
            "deep": lambda: deep.fit(X, y),
            "sharpbalance": lambda: sharpbalance.fit(X, y),
            "momentum_sam": lambda: momentum_sam.fit(X, y),
            "sharpbalance_momentum_sam": lambda: momentum_balanced.fit(X, y),
            "sharpbalance_look_sam": lambda: look_sam.fit(X, y),
            "skorch_nets": lambda: skorch_nets.fit(X, y),
        },
        repeats,
    )
    ratios = {f"{name}_ratio": t / times["bagging"] for name, t in times.items()}
    return times | ratios


def prediction(X, y, repeats):
    """predict_proba against a bare loop of forward passes."""
    clf = DeepEnsembleClassifier(max_epochs=2, random_state=0, device="cpu").fit(X, y)
    X = X.astype(np.float32)

    def bare():
        with torch.inference_mode():
            for net in clf.estimators_:
                for part in torch.as_tensor(X).split(2048):
                    net.module_(part).softmax(1).numpy()

    times = side_by_side(
        {"bare": bare, "predict_proba": lambda: clf.predict_proba(X)}, repeats
    )
    return times | {"ratio": times["predict_proba"] / times["bare"]}


def serving(X, y, repeats):
    """CPU time of ``predict_proba`` for one row and for 10,000, against scikit-learn."""
    models = {
        "mlp": MLPClassifier((128, 128), max_iter=5, random_state=0),
        "bagging": bagging(5),
        "deep": DeepEnsembleClassifier(
            max_epochs=5, random_state=0, device="cpu", **NETWORK
        ),
    }
    X = X.astype(np.float32)
    for model in models.values():
        model.fit(X, y)
    results = {}
    for n, calls in ((1, 200), (10_000, 3)):
        rows = np.resize(X, (n, X.shape[1]))
        times = {name: [] for name in models}
        for _ in range(repeats + 2):
            for name, model in models.items():
                start = time.process_time()
                for _ in range(calls):
                    model.predict_proba(rows)
                times[name].append((time.process_time() - start) / calls)
        times = {name: min(values) for name, values in times.items()}
        results[f"{n}_rows"] = times | {"ratio": times["deep"] / times["bagging"]}
    return results


def parallel(repeats):
    """Members that do not stack: n_jobs=2 against one after the other.

    Those of the first kind have operations too small for two cores to share, those of
    the second occupy both cores one by one already.
    """
    rng = np.random.default_rng(0)
    table = rng.normal(size=(8000, 50)), rng.integers(5, size=8000)
    pictures = rng.integers(256, size=(600, 3, 32, 32), dtype=np.uint8)
    kinds = {
        "dropout": (table, {"max_epochs": 12, **DROPOUT}),
        "convolutions": (
            (pictures, rng.integers(10, size=600)),
            {"estimator": SmallCNN, "max_epochs": 2, "train_transform": None},
        ),
    }

    def fit(kind, n_jobs):
        (X, y), settings = kinds[kind]
        shared = {"n_estimators": 4, "random_state": 0, "device": "cpu"}
        with joblib.parallel_config(n_jobs=n_jobs):
            DeepEnsembleClassifier(**shared, **settings).fit(X, y)

    results = {}
    for kind in kinds:
        calls = {"serial": partial(fit, kind, 1), "n_jobs=2": partial(fit, kind, 2)}
        times = side_by_side(calls, repeats)
        results[kind] = times | {"speedup": times["serial"] / times["n_jobs=2"]}
    return results


class ContiguousCNN(SmallCNN):
    """In contiguous memory, as every class that does not allow channels-last."""


class ContiguousResNet(SmallResNet):
    """In contiguous memory."""


def layouts(repeats):
    """Two epochs and a prediction of networks for pictures, by layout in memory."""
    rng = np.random.default_rng(0)
    X = rng.integers(256, size=(640, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(10, size=640)
    settings = {"n_estimators": 1, "max_epochs": 2, "random_state": 0, "device": "cpu"}
    pairs = {
        "SmallCNN": (SmallCNN, ContiguousCNN),
        "SmallResNet": (SmallResNet, ContiguousResNet),
    }
    results = {}
    for name, (module, contiguous) in pairs.items():
        first, second = (
            DeepEnsembleClassifier(each, train_transform=None, **settings)
            for each in (module, contiguous)
        )
        calls = {
            "fit": partial(first.fit, X, y),
            "fit_contiguous": partial(second.fit, X, y),
            "predict": partial(first.predict_proba, X),
            "predict_contiguous": partial(second.predict_proba, X),
        }
        times = side_by_side(calls, repeats)
        ratios = {
            f"{kind}_ratio": times[kind] / times[f"{kind}_contiguous"]
            for kind in ("fit", "predict")
        }
        results[name] = times | ratios
    results["fit_over_small_cnn"] = (
        results["SmallResNet"]["fit"] / results["SmallCNN"]["fit"]
    )
    return results


def search(X, y):
    """A grid over rho and flat_ratio with and without shared warm-ups."""
    grid = {"rho": [0.02, 0.05, 0.1], "flat_ratio": [0.2, 0.4, 0.6]}

    def fit(memory):
        clf = SharpBalanceEnsembleClassifier(
            warmup="sgd",
            lr=0.1,
            max_epochs=20,
            random_state=0,
            memory=memory,
            device="cpu",
        )
        return GridSearchCV(clf, grid, cv=3, refit=False).fit(X, y)

    plain = seconds(lambda: fit(None))
    with tempfile.TemporaryDirectory() as folder:
        cached = seconds(lambda: fit(folder))
    return {"plain": plain, "memory": cached, "ratio": cached / plain}


def scaling(quick):
    """Fit time against members and samples, per unit of work."""
    rng = np.random.default_rng(0)

    def fit(m, n):
        X, y = rng.normal(size=(n, 50)), rng.integers(5, size=n)
        clf = SharpBalanceEnsembleClassifier(
            n_estimators=m, lr=0.1, max_epochs=4, device="cpu", **NETWORK
        )
        start = time.perf_counter()
        clf.fit(X, y)
        return time.perf_counter() - start

    sizes = (1000, 10_000) if quick else (1000, 10_000, 100_000)
    return {
        "seconds_by_members": {m: fit(m, 5000) for m in (1, 2, 4, 8)},
        "seconds_by_samples": {n: fit(3, n) for n in sizes},
    }


def overhead(X, y, repeats):
    """What ``fit`` adds to the time that its engine runs."""
    from sklearn_sharpbalance.engine.base import TeamRun

    inside = []
    train = TeamRun.train

    def timed(self, *args, **kwargs):
        start = time.perf_counter()
        members = train(self, *args, **kwargs)
        inside.append(time.perf_counter() - start)
        return members

    clf = DeepEnsembleClassifier(
        lr=0.1, max_epochs=20, random_state=0, device="cpu", **NETWORK
    )
    clf.fit(X, y)
    shares = []
    TeamRun.train = timed
    try:
        for _ in range(repeats):
            inside.clear()
            total = seconds(lambda: clf.fit(X, y))
            shares.append((total - sum(inside)) / sum(inside))
    finally:
        TeamRun.train = train
    return {"share_over_engine": float(np.median(shares))}


def draw(numbers, path):
    """Cost against members and samples, with the linear line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for ax, key, label in zip(
        figure.subplots(1, 2),
        ("seconds_by_members", "seconds_by_samples"),
        ("members", "samples"),
    ):
        x = np.array(list(numbers[key]), dtype=float)
        t = np.array(list(numbers[key].values()))
        ax.loglog(x, t, "o-", label="measured")
        ax.loglog(x, t[0] * x / x[0], "--", color="grey", label="linear")
        ax.set(xlabel=label, ylabel="seconds of fit")
        ax.set_xticks(x, [f"{value:,.0f}" for value in x])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.legend()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="*", help="run these only; keep the others")
    options = parser.parse_args()
    repeats = 1 if options.quick else 3
    X, y = load_digits(return_X_y=True)
    X_large, y_large = make_classification(
        40_000, 50, n_informative=20, n_classes=5, random_state=0
    )
    parts = {
        "digits_50_epochs": lambda: against_bagging(X, y, 50, repeats),
        "40k_x_50_5_epochs": lambda: against_bagging(X_large, y_large, 5, repeats),
        "prediction": lambda: prediction(X_large, y_large, repeats),
        "serving": lambda: serving(X, y, repeats),
        "parallel": lambda: parallel(repeats),
        "layouts": lambda: layouts(repeats),
        "search": lambda: search(X, y),
        "scaling": lambda: scaling(options.quick),
        "overhead": lambda: overhead(X, y, repeats),
    }
    unknown = set(options.parts or ()) - set(parts)
    if unknown:
        parser.error(f"no parts {sorted(unknown)}; choose from {', '.join(parts)}")
    name = by_processor("cpu")
    path = Path(options.out or RESULTS) / f"{name}.json"
    numbers = json.loads(path.read_text()) if path.exists() else {}
    for part in options.parts or parts:
        numbers[part] = parts[part]()
        print(part, numbers[part], flush=True)
        write(name, numbers, options.out)  # each part is kept as soon as it is there
    if "scaling" in numbers:
        draw(numbers["scaling"], path.with_name(f"{name}_scaling.png"))


if __name__ == "__main__":
    main()
