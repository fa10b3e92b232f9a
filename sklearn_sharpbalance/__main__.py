"""The demo: ``python -m sklearn_sharpbalance [digits | table.csv]``.

Trains a deep ensemble, a SAM ensemble and SharpBalance on a table, prints what each
is worth on held-out samples, and draws the trade-off between flatness and diversity.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np
import torch

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    metrics,
)

ACCURACIES = ("members", "ensemble")
LARGEST_SEED = 2**32 - 1  # of numpy's RandomState
TOY_SETS = ("digits", "iris", "wine", "breast_cancer")
DESCRIPTION = (
    "Train a deep ensemble, a SAM ensemble and SharpBalance on a table, print what "
    "each is worth on held-out samples, and draw the trade-off between flatness and "
    "diversity."
)
LEGEND = """\
accuracy: of a member in the mean, and of the ensemble. NLL, ECE: negative
log-likelihood and calibration error, less is better. DER: how often two members
differ, over how often one is wrong. EIR: share of the members' errors that the
ensemble avoids. sharpness: how much the loss can rise near the weights.
s: seconds of training."""


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

        if target is not None:
            raise SystemExit(
                f"--target names a column of a CSV file; {name} has its labels apart."
            )
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    path = Path(name)
    if not path.is_file():
        raise SystemExit(
            f"No such data: {name!r}. Pass one of {', '.join(TOY_SETS)}, or the path "
            "of a CSV file with a header and numeric columns."
        )
    columns, table = read_table(path)
    target = target or columns[-1]
    if target not in columns:
        raise SystemExit(f"{name} has no column {target!r}; it has {columns}.")
    at = columns.index(target)
    missing = sum(not text.strip() for text in table[:, at])
    if missing:
        raise SystemExit(
            f"{name}: {missing} of {len(table)} rows have nothing in column "
            f"{target!r}, the label. Remove them."
        )
    X = np.empty((len(table), len(columns)))
    for i in set(range(len(columns))) - {at}:
        try:
            X[:, i] = table[:, i]
        except ValueError as error:
            empty = any(not text.strip() for text in table[:, i])
            raise SystemExit(
                f"Every column of {name} but {target!r} must be numeric, and "
                f"{columns[i]!r} is not: {'it has empty cells' if empty else error}."
            ) from error
    return np.delete(X, at, axis=1), table[:, at].astype(str)


def read_table(path):
    """Header and rows of a CSV file, as text."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            columns, *rows = [*csv.reader(file)] or [[]]
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path} is not encoded as UTF-8: {error}") from error
    if not any(rows):
        raise SystemExit(f"{path} has no rows below a header.")
    if len(columns) < 2:
        raise SystemExit(
            f"{path} has one column, {columns[0]!r}. It needs a label and features, "
            "separated by commas."
        )
    for number, row in enumerate(rows, 2):
        if row and len(row) != len(columns):
            raise SystemExit(
                f"{path}: line {number} has {len(row)} values, its header "
                f"{len(columns)}."
            )
    return columns, np.array([row for row in rows if row], dtype=object)


def split(X, y, options):
    """Three quarters to train on and a quarter held out, by class."""
    from sklearn.model_selection import train_test_split

    classes, counts = np.unique(y, return_counts=True)
    if 1 in counts:
        raise SystemExit(
            f"{options.data} cannot be split by class: {(counts == 1).sum()} of its "
            f"{len(classes)} classes have one sample, such as "
            f"{str(classes[counts == 1][0])!r}. Name a column of classes by --target."
        )
    try:
        return train_test_split(
            X, y, test_size=0.25, stratify=y, random_state=options.seed
        )
    except ValueError as error:
        message = f"{options.data} cannot be split by class: {error}"
        raise SystemExit(message) from error


def measure(clf, X, y, seed):
    """One row of the table."""
    member_probas = clf.member_predict_proba(X)
    proba = clf.predict_proba(X)
    if not np.isfinite(member_probas).all():
        raise SystemExit("Training diverged: no finite predictions. Lower --rho.")
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
    from rich.measure import Measurement
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
    # Lines too long for a terminal are broken there; rich would cut off digits.
    console = Console()
    whole = Measurement.get(console, console.options.update(width=1000), table).maximum
    console.width = max(console.width, whole)
    console.print(table)
    print(LEGEND)


def draw(rows, path):
    """The trade-off as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from sklearn_sharpbalance.plotting import TradeoffDisplay

    accuracy = [100 * row["ensemble"] for row in rows.values()]
    display = TradeoffDisplay(
        sharpness=[row["sharpness"] for row in rows.values()],
        diversity=[row["DER"] for row in rows.values()],
        color=accuracy,
        groups=list(rows),
        sharpness_name="Worst-case sharpness of a member",
        diversity_name="Disagreement-error ratio (DER)",
        color_name="Accuracy of the ensemble (%)",
    ).plot(  # limits for accuracies that are equal
        fit=False, vmin=max(min(accuracy) - 1, 0), vmax=min(max(accuracy) + 1, 100)
    )
    display.figure_.savefig(path, dpi=150, bbox_inches="tight")


def parse(arguments):
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sklearn_sharpbalance", description=DESCRIPTION
    )

    def add(name, default, text, **kwargs):
        shown = "the last" if default is None else default
        text = f"{text}; default: {shown}"
        parser.add_argument(name, default=default, help=text, **kwargs)

    data = f"one of {', '.join(TOY_SETS)}, or a CSV file with a header"
    add("data", "digits", data, nargs="?")
    add("--target", None, "label column of a CSV file")
    add("--members", 3, "members of each ensemble", type=number(int, 1))
    add("--epochs", 50, "epochs of training", type=number(int, 1))
    add("--rho", 0.05, "radius of SAM's perturbation", type=number(float, 0))
    seeds = number(int, 0, LARGEST_SEED)
    add("--seed", 0, "random state of split and training", type=seeds)
    add("--plot", "sharpbalance_tradeoff.png", "where to draw the trade-off")
    options = parser.parse_args(arguments)
    options.plot = picture(options.plot)
    return options


def number(kind, least, most=sys.float_info.max):
    """A reader of numbers from the command line within limits."""

    def read(text):
        value = kind(text)
        if not least <= value <= most:
            limit = f"at most {most}" if value > most else f"at least {least}"
            raise argparse.ArgumentTypeError(f"must be {limit}, got {text}")
        return value

    read.__name__ = kind.__name__  # which argparse names where it is no number
    return read


def picture(name):
    """Path of a picture; refused now, not after the training, if none can be there."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(name)
    if path.is_dir():
        raise SystemExit(f"--plot {name} is a folder. Name a file, such as plot.png.")
    if not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        raise SystemExit(f"--plot {name}: there is no folder {folder}.")
    path = path if path.suffix else path.with_suffix(".png")
    kinds, kind = FigureCanvasBase.get_supported_filetypes(), path.suffix[1:].lower()
    if kind not in kinds:
        raise SystemExit(
            f"--plot {name}: pictures of the kind {kind!r} cannot be drawn. Use one of "
            f"{', '.join(kinds)}."
        )
    return path


def main(arguments=None):
    """Run the demo."""
    options = parse(arguments)
    X, y = load(options.data, options.target)
    X_train, X_test, y_train, y_test = split(X, y, options)
    # With its first optimizer torch imports its compiler: no time of the first method.
    torch.optim.SGD([torch.zeros(1)])
    rows = {}
    for name, clf in methods(options).items():
        print(f"{name}: {len(X_train)} samples, {X.shape[1]} features")
        start = time.perf_counter()
        try:
            clf.fit(X_train, y_train)
        except ValueError as error:
            raise SystemExit(f"{options.data}: {error}") from error
        seconds = time.perf_counter() - start
        rows[name] = measure(clf, X_test, y_test, options.seed) | {"s": seconds}
    print_table(rows)
    draw(rows, options.plot)
    print(f"The trade-off is drawn in {options.plot}")


if __name__ == "__main__":
    main()
