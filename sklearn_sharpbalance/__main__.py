"""The demo: ``python -m sklearn_sharpbalance [digits | table.csv]``.

Trains a deep ensemble, a SAM ensemble and SharpBalance on a table, prints what each
is worth on held-out samples, and draws the trade-off between flatness and diversity.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    metrics,
)

ACCURACIES = ("members", "ensemble")
TOY_SETS = ("digits", "iris", "wine", "breast_cancer")


def methods(options):
    """The three ensembles that the demo compares, by name."""
    common = {
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "random_state": options.seed,
        "verbose": 1,
    }
    flat = {"rho": options.rho, **common}
    return {
        "deep ensemble": DeepEnsembleClassifier(**common),
        "SAM ensemble": SharpBalanceEnsembleClassifier(selection="all", **flat),
        "SharpBalance": SharpBalanceEnsembleClassifier(**flat),
    }


def load(name, target):
    """X and y of a toy set of scikit-learn, or of a CSV file with a header."""
    if name in TOY_SETS:
        from sklearn import datasets

        return getattr(datasets, f"load_{name}")(return_X_y=True)
    path = Path(name)
    if not path.is_file():
        raise SystemExit(
            f"No such data: {name!r}. Pass one of {', '.join(TOY_SETS)}, or the path "
            "of a CSV file with a header and numeric columns."
        )
    with path.open(newline="", encoding="utf-8-sig") as file:
        columns, *rows = csv.reader(file)
    target = target or columns[-1]
    if target not in columns:
        raise SystemExit(f"{name} has no column {target!r}; it has {columns}.")
    table = np.array(rows, dtype=object)
    at = columns.index(target)
    try:
        X = np.delete(table, at, axis=1).astype(float)
    except ValueError as error:
        message = f"Every column of {name} but {target!r} must be numeric: {error}"
        raise SystemExit(message) from error
    return X, table[:, at].astype(str)


def measure(clf, X, y, seed):
    """One row of the table."""
    member_probas = clf.member_predict_proba(X)
    proba = clf.predict_proba(X)
    codes = np.searchsorted(clf.classes_, y)
    member_accuracy = (member_probas.argmax(-1) == codes).mean()
    return {
        "members": member_accuracy,
        "ensemble": clf.score(X, y),
        "NLL": metrics.negative_log_likelihood(codes, proba),
        "ECE": metrics.expected_calibration_error(codes, proba),
        "DER": metrics.disagreement_error_ratio(codes, member_probas),
        "EIR": metrics.ensemble_improvement_rate(
            codes, member_probas, ensemble_proba=proba
        ),
        "sharpness": metrics.adaptive_sharpness(clf, X, y, random_state=seed),
    }


def print_table(rows):
    """Rows of numbers as a table in the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="On the held-out quarter",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # eighty columns hold it
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    table.add_column("accuracy %", justify="right", no_wrap=True)
    names = [name for name in next(iter(rows.values())) if name not in ACCURACIES]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for method, row in rows.items():
        members, ensemble = (100 * row[name] for name in ACCURACIES)
        cells = [f"{row[name]:.{1 if name == 's' else 4}f}" for name in names]
        table.add_row(method, f"{members:.2f} → {ensemble:.2f}", *cells)
    Console().print(table)


def draw(rows, path):
    """The trade-off as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from sklearn_sharpbalance.plotting import TradeoffDisplay

    display = TradeoffDisplay(
        sharpness=[row["sharpness"] for row in rows.values()],
        diversity=[row["DER"] for row in rows.values()],
        color=[row["ensemble"] for row in rows.values()],
        labels=list(rows),
        sharpness_name="adaptive worst-case sharpness",
        diversity_name="disagreement error ratio (DER)",
        color_name="ensemble accuracy",
    ).plot()
    display.figure_.savefig(path, dpi=150, bbox_inches="tight")


def main(arguments=None):
    """Run the demo."""
    parser = argparse.ArgumentParser(
        prog="python -m sklearn_sharpbalance", description=__doc__
    )
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--target", help="label column of a CSV; default: the last")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--rho", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", default="sharpbalance_tradeoff.png")
    options = parser.parse_args(arguments)

    from sklearn.model_selection import train_test_split

    X, y = load(options.data, options.target)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.25, stratify=y, random_state=options.seed
    )
    rows = {}
    for name, clf in methods(options).items():
        print(f"{name}: {len(X_train)} samples, {X.shape[1]} features")
        start = time.perf_counter()
        clf.fit(X_train, y_train)
        seconds = time.perf_counter() - start
        rows[name] = measure(clf, X_test, y_test, options.seed) | {"s": seconds}
    print_table(rows)
    draw(rows, options.plot)
    print(f"The trade-off is drawn in {options.plot}")


if __name__ == "__main__":
    main()
