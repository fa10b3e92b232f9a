"""Command-line demo: ``python -m sklearn_sharpbalance [digits | table.csv]``.

Train a deep ensemble, a SAM ensemble and SharpBalance on a table, print their results
on test samples, and plot the trade-off between sharpness and diversity.

Functions import what they need: torch and scikit-learn take seconds, which ``--help``
and a mistyped option need not wait for.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

ACCURACIES = ("members", "ensemble")
LARGEST_SEED = 2**32 - 1  # of numpy's RandomState
TOY_DATASETS = ("digits", "iris", "wine", "breast_cancer")
DESCRIPTION = (
    "Train a deep ensemble, a SAM ensemble and SharpBalance on a table, print their "
    "results on test samples, and plot the trade-off between sharpness and diversity."
)
LEGEND = """\
accuracy: mean over the members, and ensemble. NLL: negative log-likelihood, ECE:
expected calibration error, lower is better. DER: rate at which two members differ,
divided by their error rate. EIR: share of the members' errors that the ensemble
avoids. sharpness: largest increase of the loss near the weights. s: seconds of
training."""


def methods(options):
    """Return the three ensembles that the demo compares, by name."""
    from sklearn_sharpbalance import (
        DeepEnsembleClassifier,
        SharpBalanceEnsembleClassifier,
    )

    params = {
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "random_state": options.seed,
        "verbose": 1,
    }
    return {
        "deep ensemble": DeepEnsembleClassifier(**params),
        "SAM ensemble": SharpBalanceEnsembleClassifier(
            rho=options.rho, selection="all", **params
        ),
        "SharpBalance": SharpBalanceEnsembleClassifier(rho=options.rho, **params),
    }


def load(name, target):
    """Return X and y of a toy dataset of scikit-learn or of a CSV file."""
    import numpy as np

    if name in TOY_DATASETS:
        from sklearn import datasets

        if target is not None:
            raise SystemExit(
                f"--target is for CSV files only; {name} has its own labels."
            )
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    path = Path(name)
    if not path.is_file():
        raise SystemExit(
            f"No such data: {name!r}. Pass one of {', '.join(TOY_DATASETS)}, or the "
            "path of a CSV file with a header and numeric columns."
        )
    columns, table = read_table(path)
    target = target or columns[-1]
    if target not in columns:
        raise SystemExit(f"{name} has no column {target!r}; it has {columns}.")
    target_index = columns.index(target)
    labels = table[:, target_index].astype(str)
    n_empty = sum(not label.strip() for label in labels)
    if n_empty:
        raise SystemExit(
            f"{name}: the label column {target!r} is empty in {n_empty} of "
            f"{len(labels)} rows. Remove these rows."
        )
    features = []
    for i, (column, values) in enumerate(zip(columns, table.T)):
        if i == target_index:
            continue
        n_empty = sum(not text.strip() for text in values)
        if n_empty:
            raise SystemExit(
                f"{name}: the column {column!r} is empty in {n_empty} of {len(values)} "
                "rows. Fill these cells or remove the rows; in Python, put "
                "sklearn.impute.SimpleImputer() before the ensemble in a pipeline."
            )
        try:
            features.append(values.astype(float))
        except ValueError as error:
            raise SystemExit(
                f"All columns of {name} except {target!r} must be numeric, but "
                f"{column!r} is not: {error}."
            ) from error
    return np.column_stack(features), labels


def read_table(path):
    """Return the header, a list, and the rows, an array of str, of a CSV file."""
    import numpy as np

    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path} is not encoded as UTF-8: {error}") from error
    if not any(lines[1:]):
        raise SystemExit(f"{path} has no rows below a header.")
    columns, rows = lines[0], lines[1:]
    if len(columns) < 2:
        raise SystemExit(
            f"{path} has one column, {columns[0]!r}. It needs a label and features, "
            "separated by commas."
        )
    for number, row in enumerate(rows, 2):
        if row and len(row) != len(columns):
            raise SystemExit(
                f"{path}: line {number} has {len(row)} values, the header has "
                f"{len(columns)}."
            )
    return columns, np.array([row for row in rows if row], dtype=object)


def split(X, y, options):
    """Return a stratified split with a quarter of the samples for tests."""
    import numpy as np
    from sklearn.model_selection import train_test_split

    classes, counts = np.unique(y, return_counts=True)
    if 1 in counts:
        raise SystemExit(
            f"{options.data} cannot be split by class: {(counts == 1).sum()} of its "
            f"{len(classes)} classes have one sample, such as "
            f"{str(classes[counts == 1][0])!r}. Pass the label column as --target."
        )
    try:
        return train_test_split(
            X, y, test_size=0.25, stratify=y, random_state=options.seed
        )
    except ValueError as error:
        message = f"{options.data} cannot be split by class: {error}"
        raise SystemExit(message) from error


def measure(clf, X, y, seed):
    """Return the results of one ensemble by name."""
    import numpy as np

    from sklearn_sharpbalance import metrics

    member_probas = clf.member_predict_proba(X)
    proba = clf.predict_proba(X)
    if not np.isfinite(member_probas).all():
        raise SystemExit("Training diverged: predictions are not finite. Lower --rho.")
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
    """Print the results of all ensembles as a table."""
    from sklearn_sharpbalance._validation import needing

    with needing("rich", "The table of the demo"):
        from rich import box
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table

    table = Table(
        title="Results on the test samples",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # fits into 80 columns
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    table.add_column("accuracy %", justify="right", no_wrap=True)
    names = [name for name in next(iter(rows.values())) if name not in ACCURACIES]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for method, row in rows.items():
        accuracy = f"{100 * row['members']:.2f} → {100 * row['ensemble']:.2f}"
        cells = [f"{row[n]:.1f}" if n == "s" else f"{row[n]:.4f}" for n in names]
        table.add_row(method, accuracy, *cells)
    # Let a narrow terminal wrap long lines: rich would cut off digits.
    console = Console()
    wide = console.options.update(width=1000)
    table_width = Measurement.get(console, wide, table).maximum
    console.width = max(console.width, table_width)
    console.print(table)
    print(LEGEND)


def draw(rows, path):
    """Plot sharpness, diversity and accuracy of all ensembles into a file."""
    from sklearn_sharpbalance._validation import needing

    with needing("matplotlib", "The plot of the demo"):
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
    )
    # The limits of the colours differ even if all accuracies are equal.
    display.plot(
        fit=False, vmin=max(min(accuracy) - 1, 0), vmax=min(max(accuracy) + 1, 100)
    )
    display.figure_.savefig(path, dpi=150, bbox_inches="tight")


def parse(arguments):
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sklearn_sharpbalance", description=DESCRIPTION
    )

    def add(name, default, text, **kwargs):
        parser.add_argument(
            name, default=default, help=f"{text}; default: %(default)s", **kwargs
        )

    names = ", ".join(TOY_DATASETS)
    add("data", "digits", f"one of {names}, or a CSV file with a header", nargs="?")
    parser.add_argument(
        "--target", help="label column of a CSV file; default: the last"
    )
    add("--members", 3, "members of each ensemble", type=number(int, 1))
    add("--epochs", 50, "training epochs", type=number(int, 1))
    add("--rho", 0.05, "radius of SAM's perturbation", type=number(float, 0))
    seed = number(int, 0, LARGEST_SEED)
    add("--seed", 0, "random state of split and training", type=seed)
    add("--plot", "sharpbalance_tradeoff.png", "file of the plot")
    options = parser.parse_args(arguments)
    options.plot = plot_path(options.plot)
    return options


def number(kind, least, most=sys.float_info.max):
    """Return an argparse type for numbers from ``least`` to ``most``."""

    def read(text):
        value = kind(text)
        if not least <= value <= most:
            limit = f"at most {most}" if value > most else f"at least {least}"
            raise argparse.ArgumentTypeError(f"must be {limit}, got {text}")
        return value

    read.__name__ = kind.__name__  # argparse names it if the text is not a number
    return read


def plot_path(name):
    """Return the path of the plot; raise before training if it cannot be written."""
    from sklearn_sharpbalance._validation import needing

    with needing("matplotlib", "The plot of the demo"):
        from matplotlib.backend_bases import FigureCanvasBase

    path = Path(name)
    if path.is_dir():
        raise SystemExit(f"--plot {name} is a folder. Pass a file, such as plot.png.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SystemExit(f"--plot {name}: there is no folder {folder}. Create it.")
    if not path.suffix:
        path = path.with_suffix(".png")
    suffix = path.suffix[1:].lower()
    supported = FigureCanvasBase.get_supported_filetypes()
    if suffix not in supported:
        raise SystemExit(
            f"--plot {name}: the file type {suffix!r} is not supported. Use one of "
            f"{', '.join(supported)}."
        )
    return path


def main(arguments=None):
    """Run the demo."""
    options = parse(arguments)
    X, y = load(options.data, options.target)
    X_train, X_test, y_train, y_test = split(X, y, options)
    rows = {}
    for name, clf in methods(options).items():
        print(f"{name}: {len(X_train)} samples, {X.shape[1]} features", flush=True)
        start = time.perf_counter()
        try:
            clf.fit(X_train, y_train)
        except ValueError as error:
            raise SystemExit(f"{options.data}: {error}") from error
        seconds = time.perf_counter() - start
        print(f"{name}: measuring its sharpness", flush=True)
        rows[name] = measure(clf, X_test, y_test, options.seed) | {"s": seconds}
    print_table(rows)
    draw(rows, options.plot)
    print(f"The plot of the trade-off is in {options.plot}")


if __name__ == "__main__":
    main()
