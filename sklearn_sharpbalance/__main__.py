"""Command-line demo: ``python -m sklearn_sharpbalance [digits | table.csv]``.

Train a deep ensemble, a SAM ensemble and SharpBalance on half of a table, and test them
on the other half, as it is and with corrupted features.

Functions import what they need: torch and scikit-learn take seconds, which ``--help``
and a mistyped option need not wait for.
"""

import argparse
import sys
import time
from pathlib import Path

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
LEAST = {"members": 1, "epochs": 1, "rho": 0, "seeds": 1, "seed": 0, "rows": 4}
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
    if not Path(name).is_file():
        raise SystemExit(
            f"No such data: {name!r}. Pass one of {', '.join(TOY_DATASETS)}, or the "
            "path of a CSV or parquet file with a header."
        )
    table = read_table(Path(name))
    target = target or table.columns[-1]
    if target not in table:
        raise SystemExit(f"{name} has no column {target!r}; it has {[*table.columns]}.")
    return table.drop(columns=target), table[target]


def read_table(path):
    """Return the table of a CSV or parquet file, which may be compressed."""
    import pandas as pd

    try:
        if ".parquet" in path.suffixes:
            table = pd.read_parquet(path)
        else:
            headers = {mark: pd.read_csv(path, sep=mark, nrows=0) for mark in ",;\t|"}
            separator = max(headers, key=lambda mark: len(headers[mark].columns))
            table = pd.read_csv(path, sep=separator)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"{path} cannot be read: {error}") from error
    table = table.dropna(how="all")
    if table.empty or len(table.columns) < 2:
        raise SystemExit(
            f"{path} has the columns {[*table.columns]} and {len(table)} rows. It "
            "needs a header, rows, a label and features, separated by commas, "
            "semicolons, tabs or bars."
        )
    return table


def check_labels(y, name):
    """Refuse labels that are missing, continuous or too rare for a split."""
    from sklearn.utils.multiclass import type_of_target

    counts = y.value_counts(dropna=False)
    if y.isna().any():
        problem = f"is empty in {y.isna().sum()} of {len(y)} rows. Remove these rows."
    elif type_of_target(y).startswith("continuous"):
        problem = f"is continuous, such as {y.iloc[0]}. Pass classes as --target."
    elif counts.min() == 1:
        problem = (
            f"has {(counts == 1).sum()} of {len(counts)} classes with one row, such as "
            f"{str(counts.index[-1])!r}. Pass the label column as --target."
        )
    else:
        return
    raise SystemExit(f"{name}: the label column {y.name!r} {problem}")


def class_counts(y, most=10):
    """Return the largest classes, each with its number of rows, as a text."""
    counts = y.value_counts()
    named = [f"{label} ({rows})" for label, rows in counts.head(most).items()]
    if len(counts) > most:
        named.append(f"{len(counts) - most} more")
    return ", ".join(named)


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
    X, columns = X.copy(), [*X_train.select_dtypes("number").columns]
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


def with_progress(fits):
    """Yield the fits; show a bar in a terminal, elsewhere a line every 3 seconds."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(fits, "fits", console=console)
        return
    shown = time.perf_counter()
    for number, fit in enumerate(fits):
        if time.perf_counter() - shown > 3:
            shown = time.perf_counter()
            print(f"{number} of {len(fits)} fits", file=sys.stderr, flush=True)
        yield fit


def compare(X, y, options):
    """Return the results, one row for each split and method."""
    import pandas as pd
    from sklearn.model_selection import train_test_split

    seeds = range(options.seed, options.seed + options.seeds)
    fits = [(seed, *fit) for seed in seeds for fit in ensembles(options, seed).items()]
    results = []
    for seed, name, clf in with_progress(fits):
        X_train, X_test, y_train, y_test = train_test_split(
            X, y, test_size=0.5, stratify=y, random_state=seed
        )
        start = time.perf_counter()
        clf.fit(X_train, y_train)
        row = {"method": name, "seed": seed, "s": time.perf_counter() - start}
        row |= measure(clf, (X_train, y_train), (X_test, y_test), seed)
        results.append(row)
    return pd.DataFrame(results)


# Showing the results ----------------------------------------------------------------


def half_width(values):
    """Return half of the 95 % interval of a mean, NaN for one value."""
    from scipy import stats

    return stats.t.ppf(0.975, max(len(values) - 1, 1)) * values.sem()


def with_interval(values, digits=1, sign=""):
    """Return the text of a mean and, if there is more than one value, its interval."""
    mean = f"{values.mean():{sign}.{digits}f}"
    return f"{mean} ± {half_width(values):.{digits}f}" if len(values) > 1 else mean


def print_results(results, options):
    """Print one row for each method, and what SharpBalance gains, pair by pair."""
    import pandas as pd

    groups = results.groupby("method", sort=False)
    columns = {
        "passes": groups["passes"].mean().map("{:.0f}".format),
        "seconds": groups["s"].mean().map("{:.2f}".format),
        "clean %": groups["clean %"].apply(with_interval),
        "corrupted %": groups["corrupted %"].apply(with_interval),
        "DER": groups["DER"].mean().map("{:.3f}".format),
        "sharpness": groups["sharpness"].mean().map("{:.4f}".format),
    }
    print(pd.DataFrame(columns).rename_axis(None).to_string(line_width=1000))
    print(LEGEND.format(seeds=options.seeds, rho=options.rho))
    accuracy = results.pivot(index="seed", columns="method", values="corrupted %")
    gain = with_interval(accuracy[BALANCED] - accuracy[TWICE], digits=2, sign="+")
    print(
        "On corrupted rows SharpBalance differs from the deep ensemble of twice the\n"
        f"epochs by {gain} points."
    )
    print(NOT_SHOWN)


def draw(results, path):
    """Plot corrupted accuracy, and diversity against sharpness, by split."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for i, name in enumerate(METHODS):
        runs = results[results["method"] == name]
        values = runs["corrupted %"]
        left.scatter([i] * len(runs), values, s=12, color=f"C{i}")
        left.errorbar(
            i + 0.15, values.mean(), half_width(values), fmt="o", capsize=4, c=f"C{i}"
        )
        right.scatter(runs["sharpness"], runs["DER"], s=12, color=f"C{i}")
        x, y = runs["sharpness"].mean(), runs["DER"].mean()
        right.scatter(x, y, s=90, color=f"C{i}", edgecolors="black", label=name)
    labels = [name.replace(", ", ",\n") for name in METHODS]
    left.set_xticks(range(len(METHODS)), labels)
    left.set_ylabel("Accuracy on corrupted rows (%)")
    right.set_xlabel("Sharpness on the training set (left: flatter)")
    right.locator_params(axis="x", nbins=5)
    right.set_ylabel("DER on corrupted rows (up: more diverse)")
    figure.suptitle("Small: a split each; large: mean", fontsize="medium")
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
        text = f"{text}; default: %(default)s"
        parser.add_argument(name, default=default, help=text, **kwargs)

    names = ", ".join(TOY_DATASETS)
    add("data", "digits", f"one of {names}, or a CSV or parquet file", nargs="?")
    parser.add_argument("--target", help="label column of a file; default: the last")
    add("--members", 3, "members of each ensemble", type=int)
    add("--epochs", 40, "training epochs", type=int)
    add("--rho", 0.5, "radius of SAM's perturbation", type=float)
    add("--seeds", 5, "splits", type=int)
    add("--seed", 0, "first random state", type=int)
    add("--rows", 5000, "use at most so many rows, drawn at random", type=int)
    add("--plot", "sharpbalance_demo.png", "file of the plot")
    options = parser.parse_args(arguments)
    for name, least in LEAST.items():
        value = getattr(options, name)
        if not value >= least:  # or not a number
            parser.error(f"--{name} must be at least {least}, got {value}")
    options.plot = plot_path(options.plot)
    return options


def plot_path(name):
    """Return the path of the plot; raise before training if it cannot be written."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(name if Path(name).suffix else f"{name}.png")
    supported = FigureCanvasBase.get_supported_filetypes()
    if not path.parent.is_dir():
        raise SystemExit(f"--plot {name}: there is no folder {path.parent}. Create it.")
    if path.suffix[1:].lower() not in supported:
        raise SystemExit(
            f"--plot {name}: the file type {path.suffix!r} is not supported. Use one "
            f"of {', '.join(supported)}."
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
    check_labels(y, options.data)
    print(f"{options.data}: {len(X)} rows, half for training; {X.shape[1]} features")
    print(f"classes, with their rows: {class_counts(y)}", flush=True)
    try:
        results = compare(X, y, options)
    except (SharpBalanceError, ValueError) as error:
        raise SystemExit(f"{options.data}: {error}") from error
    print_results(results, options)
    draw(results, options.plot)
    print(f"The figure is in {options.plot}")


if __name__ == "__main__":
    main()
