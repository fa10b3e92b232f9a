"""Tables of 1,000 to 500,000 rows: the default against an MLP and gradient boosting.

    python examples/experiments/bench_tables_sizes.py [--tables ...]
    python examples/experiments/bench_tables_sizes.py --report

The rows are those of one synthetic table for each seed: 10 columns, of which 6 are informative,
and 4 clusters of each class. All sizes have the same 20,000 test rows. Each method has
its default settings; the MLP stops early, with scaled columns. There is one record for each size,
seed and method; a second call runs the missing ones. ``--report`` prints the
comparison and writes it to ``results/``.
"""

import argparse

from _tables import SIZES
from bench_tables import OURS, RESULTS, SCIKIT_LEARN, Records, means, run, write_report
from bench_tables_ablation import REFERENCES

MLP = "MLPClassifier, early stopping"
BOOSTING = "HistGradientBoosting"
METHODS = OURS | {MLP: REFERENCES[MLP], BOOSTING: SCIKIT_LEARN[BOOSTING]}
SEEDS = {"1,000 rows": 5, "10,000 rows": 5, "100,000 rows": 2, "500,000 rows": 1}


def report(records):
    """Return a table of markdown: one line for each size and method."""
    lines = [
        "| training rows | seeds | | log-loss | accuracy | CPU seconds | "
        f"CPU seconds, divided by those of {MLP} |",
        "|---|---|---|---|---|---|---|",
    ]
    names = [*METHODS]
    for size in SIZES:
        losses, kept = means(records, [size], names, "log_loss")
        if not kept:
            continue
        accuracy, _ = means(records, [size], names, "accuracy")
        seconds, _ = means(records, [size], names, "seconds")
        n_seeds = len({seed for table, seed, _ in records if table == size})
        for i, name in enumerate(names):
            ratio = seconds[0, i] / seconds[0, names.index(MLP)]
            lines.append(
                f"| {size.removesuffix(' rows')} | {n_seeds} | {name} | "
                f"{losses[0, i]:.3f} | {accuracy[0, i]:.3f} | {seconds[0, i]:.1f} | "
                f"{ratio:.2f} |"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=[*SIZES])
    parser.add_argument("--out", default=RESULTS / "tables_sizes.json")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    records = Records(args.out)
    if args.report:
        text = report(records.read())
        print(text)
        write_report(text, name="tables_sizes")
        return
    for size in args.tables:
        run(METHODS, [size], range(SEEDS[size]), records)


if __name__ == "__main__":
    main()
