"""Command-line demo: ``python -m sklearn_sharpbalance [digits | table.csv]``.

Train a deep ensemble, a SAM ensemble and SharpBalance on half of a table, and test them
on the other half, as it is and with corrupted features.

Functions import what they need: torch and scikit-learn take seconds, which ``--help``
and a mistyped option need not wait for.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

LARGEST_SEED = 2**32 - 1  # of numpy's RandomState
TOY_DATASETS = ("digits", "iris", "wine", "breast_cancer")
CORRUPTIONS = ("noise", "missing", "shift")
DEEP, TWICE, SAM, BALANCED = METHODS = (
    "deep ensemble",
    "deep ensemble, 2 x epochs",
    "SAM",
    "SharpBalance",
)
DESCRIPTION = """\
Train a deep ensemble, a SAM ensemble and SharpBalance on half of a table, test them on
the other half, as it is and with corrupted features, and plot the results."""
LEGEND = """\
Means over {seeds} splits, with 95 % intervals. passes: forward and backward passes over
the training set, all members together. corrupted: rows with noise, missing or shifted
features. DER: rate at which two members differ on them, divided by their error rate.
sharpness: largest increase of the training loss near the weights.
SAM and SharpBalance (rule "flattest", step "sam") have rho {rho:g}."""
NOT_SHOWN = """\
It does not show that the choice of the samples for SAM matters: on digits, random sets
(selection="random") do as well."""


# Reading a table --------------------------------------------------------------------


def load(name, target):
    """Return features, a DataFrame, and labels of a toy dataset or of a file."""
    if name in TOY_DATASETS:
        from sklearn import datasets

        if target is not None:
            raise SystemExit(f"--target is for files only; {name} has its own labels.")
        return getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
    path = Path(name)
    if not path.is_file():
        raise SystemExit(
            f"No such data: {name!r}. Pass one of {', '.join(TOY_DATASETS)}, or the "
            "path of a CSV or parquet file with a header."
        )
    table = read_table(path)
    target = target or table.columns[-1]
    if target not in table:
        raise SystemExit(f"{name} has no column {target!r}; it has {[*table.columns]}.")
    return table.drop(columns=target), table[target]


def read_table(path):
    """Return the table of a CSV or parquet file, which may be compressed."""
    import pandas as pd

    try:
        read = pd.read_parquet if ".parquet" in path.suffixes else read_csv
        table = read(path)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"{path} cannot be read: {error}") from error
    table = table.dropna(how="all")
    if table.empty:
        raise SystemExit(f"{path} has no rows below a header.")
    if len(table.columns) < 2:
        raise SystemExit(
            f"{path} has one column, {table.columns[0]!r}. It needs a label and "
            "features, separated by commas, semicolons, tabs or bars."
        )
    return table


def read_csv(path):
    """Return the table of a CSV file, whose separator and encoding are found out."""
    import pandas as pd
    from pandas.io.common import get_handle

    with get_handle(path, "rb", compression="infer", is_text=False) as file:
        raw = file.handle.read(1 << 16)
    encoding = encoding_of(raw)
    lines = raw.decode(encoding, errors="ignore").splitlines()
    separator = separator_of(lines[0] if lines else "")
    tables = [
        pd.read_csv(path, sep=separator, encoding=encoding, decimal=decimal)
        for decimal in (".," if separator == ";" else ".")
    ]
    return max(tables, key=lambda table: len(numeric(table)))


def encoding_of(raw):
    """Return UTF-8 or UTF-16 if the bytes are that, else Latin-1."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        raw[: raw.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def separator_of(header):
    """Return the separator of a header, a comma if there is none."""
    try:
        return csv.Sniffer().sniff(header, delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


def numeric(table):
    """Return the names of columns of numbers."""
    return [*table.select_dtypes("number").columns]


def check_labels(y, name):
    """Refuse labels that are missing, continuous or too rare for a split."""
    import numpy as np
    from sklearn.utils.multiclass import type_of_target

    n_empty = int(y.isna().sum())
    if n_empty:
        raise SystemExit(
            f"{name}: the label column {y.name!r} is empty in {n_empty} of {len(y)} "
            "rows. Remove these rows."
        )
    if type_of_target(y).startswith("continuous"):
        raise SystemExit(
            f"{name}: the label column {y.name!r} is continuous, such as "
            f"{y.iloc[0]}; this is a classifier. Pass a column of classes as "
            "--target, or put the numbers into classes, such as by pandas.qcut."
        )
    classes, counts = np.unique(y, return_counts=True)
    if 1 in counts:
        raise SystemExit(
            f"{name} cannot be split by class: {(counts == 1).sum()} of its "
            f"{len(classes)} classes have one sample, such as "
            f"{str(classes[counts == 1][0])!r}. Pass the label column as --target."
        )
    shown = [f"{label} ({count})" for label, count in zip(classes[:20], counts)]
    if len(classes) > len(shown):
        shown.append(f"and {len(classes) - len(shown)} more")
    print(f"{len(classes)} classes (rows): {', '.join(shown)}", flush=True)


# Training and measuring -------------------------------------------------------------


def ensembles(options, seed):
    """Return the ensembles that the demo compares, by name."""
    from sklearn_sharpbalance import (
        DeepEnsembleClassifier,
        SharpBalanceEnsembleClassifier,
    )

    epochs = options.epochs
    params = {"n_estimators": options.members, "random_state": seed}
    flat = params | {"sam": "sam", "rho": options.rho, "max_epochs": epochs}
    return {
        DEEP: DeepEnsembleClassifier(max_epochs=epochs, **params),
        TWICE: DeepEnsembleClassifier(max_epochs=2 * epochs, **params),
        SAM: SharpBalanceEnsembleClassifier(selection="all", **flat),
        BALANCED: SharpBalanceEnsembleClassifier(selection="flattest", **flat),
    }


def corrupted(X, X_train, kind, rng):
    """Return rows with noise, missing or shifted features.

    Noise has the standard deviation of its column. Three cells in ten are missing and
    imputed. A shift is half a standard deviation, up or down. Only numbers get noise
    and shifts.
    """
    X, columns = X.copy(), numeric(X_train)
    if kind == "missing":
        for name in X:
            values = X_train[name]
            fill = values.mean() if name in columns else values.mode().iloc[0]
            X[name] = X[name].where(rng.random(len(X)) > 0.3, fill)
        return X
    scale = X_train[columns].std().to_numpy()
    if kind == "noise":
        X[columns] = X[columns] + scale * rng.normal(size=(len(X), len(columns)))
    else:
        X[columns] = X[columns] + scale * rng.choice([-0.5, 0.5], size=len(columns))
    return X


def measure(clf, train, test, seed):
    """Return the results of one ensemble by the name of the column."""
    import numpy as np

    from sklearn_sharpbalance import metrics
    from sklearn_sharpbalance.evaluation import gradient_passes

    (X, y), rng = test, np.random.default_rng(seed)
    rows = [corrupted(X, train[0], kind, rng) for kind in CORRUPTIONS]
    probas = np.concatenate([clf.member_predict_proba(each) for each in rows], axis=1)
    if not np.isfinite(probas).all():
        raise SystemExit("Training diverged: predictions are not finite. Lower --rho.")
    return {
        "passes": gradient_passes(clf),
        "clean %": 100 * clf.score(X, y),
        "corrupted %": 100 * np.mean([clf.score(each, y) for each in rows]),
        "DER": metrics.disagreement_error_ratio(
            np.tile(y, len(rows)), probas, labels=clf.classes_
        ),
        "sharpness": metrics.adaptive_sharpness(
            clf, *train, n_batches=20, random_state=seed
        ),
    }


def compare(X, y, options):
    """Return the results, one row for each split and method."""
    import pandas as pd
    from rich.console import Console
    from rich.progress import Progress
    from sklearn.model_selection import train_test_split

    results, console = [], Console(stderr=True)
    hidden = not console.is_terminal
    seeds = range(options.seed, options.seed + options.seeds)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=len(seeds) * len(METHODS))
        for seed in seeds:
            X_train, X_test, y_train, y_test = train_test_split(
                X, y, test_size=0.5, stratify=y, random_state=seed
            )
            for name, clf in ensembles(options, seed).items():
                progress.update(task, description=f"{name}, split {seed}")
                start = time.perf_counter()
                clf.fit(X_train, y_train)
                row = {"method": name, "seed": seed, "s": time.perf_counter() - start}
                row |= measure(clf, (X_train, y_train), (X_test, y_test), seed)
                results.append(row)
                progress.advance(task)
    return pd.DataFrame(results)


# Showing the results ----------------------------------------------------------------


def half_width(values):
    """Return half of the 95 % interval of a mean, NaN for one value."""
    from scipy import stats

    return stats.t.ppf(0.975, max(len(values) - 1, 1)) * values.sem()


def with_interval(values, digits=1, sign=""):
    half = half_width(values)
    mean = f"{values.mean():{sign}.{digits}f}"
    return mean if half != half else f"{mean} ± {half:.{digits}f}"


def print_results(results, options):
    """Print one row for each method, and what SharpBalance gains, pair by pair."""
    import pandas as pd

    groups = dict(list(results.groupby("method", sort=False)))
    rows = {
        name: {
            "passes": f"{runs['passes'].mean():.0f}",
            "seconds": f"{runs['s'].mean():.2f}",
            "clean %": with_interval(runs["clean %"]),
            "corrupted %": with_interval(runs["corrupted %"]),
            "DER": f"{runs['DER'].mean():.3f}",
            "sharpness": f"{runs['sharpness'].mean():.4f}",
        }
        for name, runs in groups.items()
    }
    print(pd.DataFrame(rows).T.to_string(line_width=1000))
    print(LEGEND.format(seeds=options.seeds, rho=options.rho))
    ours, other = (groups[name].set_index("seed") for name in (BALANCED, TWICE))
    gain = ours["corrupted %"] - other["corrupted %"]
    print(
        "On corrupted rows SharpBalance differs from the deep ensemble of twice the\n"
        f"epochs by {with_interval(gain, digits=2, sign='+')} points."
    )
    print(NOT_SHOWN)


def draw(results, path):
    """Plot corrupted accuracy, and diversity against sharpness, by split."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    accuracy = results.pivot(index="seed", columns="method", values="corrupted %")
    left.plot(accuracy[[*METHODS]].T.to_numpy(), color="0.85", lw=0.8, zorder=0)
    for i, (name, runs) in enumerate(results.groupby("method", sort=False)):
        color, values = f"C{i}", runs["corrupted %"]
        left.scatter([i] * len(runs), values, s=12, color=color)
        half = half_width(values)
        left.errorbar(i + 0.15, values.mean(), half, fmt="o", ms=8, capsize=4, c=color)
        right.scatter(runs["sharpness"], runs["DER"], s=12, color=color)
        mean = runs[["sharpness", "DER"]].mean()
        right.scatter(*mean, s=90, color=color, edgecolors="black", label=name)
    left.set_xticks(
        range(len(METHODS)), [name.replace(", ", ",\n") for name in METHODS]
    )
    left.set_ylabel("Accuracy on corrupted rows (%)")
    left.set_title("Small: a split each; large: mean, 95 % interval", fontsize="medium")
    right.set_xlabel("Sharpness on the training set (left: flatter)")
    right.set_ylabel("DER on corrupted rows (up: more diverse)")
    right.set_title("Small: a split each; large: mean", fontsize="medium")
    right.locator_params(axis="x", nbins=5)
    right.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


# The command ------------------------------------------------------------------------


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
    add("data", "digits", f"one of {names}, or a CSV or parquet file", nargs="?")
    parser.add_argument("--target", help="label column of a file; default: the last")
    add("--members", 3, "members of each ensemble", type=number(int, 1))
    add("--epochs", 40, "training epochs", type=number(int, 1))
    add("--rho", 0.5, "radius of SAM's perturbation", type=number(float, 0))
    add("--seeds", 5, "splits", type=number(int, 1))
    add("--seed", 0, "first random state", type=number(int, 0, LARGEST_SEED - 1000))
    add(
        "--rows", 5000, "use at most so many rows, drawn at random", type=number(int, 4)
    )
    add("--plot", "sharpbalance_demo.png", "file of the plot")
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
    import matplotlib

    from sklearn_sharpbalance.exceptions import SharpBalanceError

    matplotlib.use("Agg")
    X, y = load(options.data, options.target)
    if len(X) > options.rows:
        X = X.sample(options.rows, random_state=options.seed)
        y = y.loc[X.index]
    print(f"{options.data}: {len(X)} rows, half for training; {X.shape[1]} features")
    check_labels(y, options.data)
    try:
        results = compare(X, y, options)
    except (SharpBalanceError, ValueError) as error:
        raise SystemExit(f"{options.data}: {error}") from error
    print_results(results, options)
    draw(results, options.plot)
    print(f"The figure is in {options.plot}")


if __name__ == "__main__":
    main()
