"""What the pair term of SED costs in a step, against the number of members.

    python examples/benchmarks/bench_sed.py [--out DIR] [--quick]

Two members are drawn in every step. The term on its own (forward and backward, from the
logits of all members) should take as long for sixteen members as for two; over all
pairs it grows with their square. Beside it the whole step, with and without the term,
for members that are stacked and for members that run one after the other. Times are
processor time of one thread, medians of alternating repetitions.
"""

import argparse
import time
from functools import partial

import numpy as np
import torch
from _machine import machine, write
from sklearn.datasets import load_digits

from sklearn_sharpbalance import DiversifiedEnsembleClassifier
from sklearn_sharpbalance.members.diversity_losses import sed_term

MEMBERS = (2, 4, 8, 16)
BATCH = 128


def milliseconds(call):
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def side_by_side(calls, repeats, warm_up=3):
    """Median milliseconds of each call; repetitions alternate, so noise is shared."""
    times = {name: [] for name in calls}
    for i in range(repeats + warm_up):
        for name, call in calls.items():
            spent = milliseconds(call)
            if i >= warm_up:
                times[name].append(spent)
    return {name: round(float(np.median(v)), 4) for name, v in times.items()}


def pair_term(n_members, n_drawn, n_classes=10):
    """A call that takes the term and its gradient in the logits of all members."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(n_members, BATCH, n_classes, generator=rng)
    y = torch.randint(n_classes, (BATCH,), generator=rng)
    weight = torch.full((BATCH,), 1 / BATCH)
    drawn = list(range(n_drawn))

    def call():
        leaf = logits.detach().requires_grad_()
        chosen = torch.stack([leaf[member] for member in drawn])
        with torch.no_grad():
            mean = leaf.mean(0)
        sed_term(chosen, mean, y, weight).backward()

    return call


def terms(repeats):
    """Milliseconds of the term by members: two drawn, and over all pairs."""
    drawn = side_by_side({m: pair_term(m, 2) for m in MEMBERS}, repeats)
    everyone = side_by_side({m: pair_term(m, m) for m in MEMBERS}, max(1, repeats // 4))
    return {
        "two_drawn_ms": drawn,
        "all_pairs_ms": everyone,
        "two_drawn_16_over_2": drawn[16] / drawn[2],
        "all_pairs_16_over_2": everyone[16] / everyone[2],
    }


def steps(X, y, repeats, **module):
    """Milliseconds of a whole step by members, with and without the term."""
    n_batches, few, many = -(-len(X) // BATCH), 1, 5

    def ensemble(n_members, weight, n_epochs):
        return DiversifiedEnsembleClassifier(
            n_estimators=n_members,
            diversity_weight=weight,
            max_epochs=n_epochs,
            batch_size=BATCH,
            random_state=0,
            device="cpu",
            **module,
        )

    report = {"engine": ensemble(2, 0.1, 1).fit(X, y).engine_.name}
    for m in MEMBERS:
        calls = {
            (weight, n): partial(ensemble(m, weight, n).fit, X, y)
            for weight in (0.0, 0.1)
            for n in (few, many)
        }
        spent = side_by_side(calls, repeats, warm_up=1)
        # The difference of two fits: what a fit does before its first epoch drops out.
        without, together = (
            (spent[weight, many] - spent[weight, few]) / (many - few) / n_batches
            for weight in (0.0, 0.1)
        )
        report[m] = {
            "without_ms": without,
            "with_ms": together,
            "term_ms": together - without,
            "term_share": (together - without) / together,
        }
        print(m, report[m], flush=True)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    X, y = load_digits(return_X_y=True)
    repeats = 1 if options.quick else 5
    numbers = {
        "term": terms(20 if options.quick else 600),
        "steps_stacked": steps(X, y, repeats),
        # Dropout keeps members from being stacked.
        "steps_modules": steps(X, y, repeats, estimator__module__dropout=0.1),
    }
    write("sed", numbers, options.out)


if __name__ == "__main__":
    main()
