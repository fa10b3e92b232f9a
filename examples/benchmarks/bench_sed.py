"""What the pair term of SED costs in a step, against the number of members.

    python examples/benchmarks/bench_sed.py [--out DIR] [--quick]

Two members are drawn in every step. The term on its own (forward and backward, from
logits of all members) should take as long for sixteen members as for two; over all pairs
it grows with their square. Beside it the whole step, with and without the term, for
members that are stacked and for members that run one after the other. Times are medians
of alternating repetitions.
"""

import argparse
import time

import numpy as np
import torch
from _machine import machine, write
from sklearn.datasets import load_digits

from sklearn_sharpbalance import MLP, DiversifiedEnsembleClassifier, SmallCNN
from sklearn_sharpbalance.members.diversity_losses import sed_term

MEMBERS = (2, 4, 8, 16)
BATCH = 128


def side_by_side(calls, repeats, warm_up=3):
    """Median milliseconds of each call; repetitions alternate, so noise is shared."""
    times = {name: [] for name in calls}
    for i in range(repeats + warm_up):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if i >= warm_up:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: float(np.median(values)) for name, values in times.items()}


def pair_term(n_members, n_drawn, n_classes=10):
    """A call that takes the term and its gradient in the logits of all members."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(n_members, BATCH, n_classes, generator=rng)
    y = torch.randint(n_classes, (BATCH,), generator=rng)
    weight = torch.full((BATCH,), 1 / BATCH)
    drawn = list(range(n_drawn))

    def call():
        leaf = logits.clone().requires_grad_()
        chosen = leaf if n_drawn == n_members else leaf[drawn]
        with torch.no_grad():
            mean = leaf.mean(0)
        sed_term(chosen, mean, y, weight).backward()

    return call


def terms(repeats):
    """Milliseconds of the term by members: two drawn, and over all pairs."""
    drawn = side_by_side({m: pair_term(m, 2) for m in MEMBERS}, repeats)
    everyone = side_by_side({m: pair_term(m, m) for m in MEMBERS}, repeats // 5)
    return {
        "two_drawn_ms": drawn,
        "all_pairs_ms": everyone,
        "two_drawn_16_over_2": drawn[16] / drawn[2],
        "all_pairs_16_over_2": everyone[16] / everyone[2],
    }


def steps(estimator, X, y, repeats):
    """Milliseconds of a whole step by members, with and without the term."""

    def step(n_members, weight):
        clf = DiversifiedEnsembleClassifier(
            estimator,
            n_members,
            diversity_weight=weight,
            batch_size=BATCH,
            max_epochs=4,
            random_state=0,
            device="cpu",
        ).fit(X, y)
        seconds = [record["dur"] for record in clf.history_[0][1:]]
        return clf.engine_.name, 1e3 * min(seconds) / -(-len(X) // BATCH)

    report = {}
    for m in MEMBERS:
        pairs = [(step(m, 0.0), step(m, 0.1)) for _ in range(repeats)]
        without, together = (
            float(np.median([pair[i][1] for pair in pairs])) for i in (0, 1)
        )
        report[m] = {
            "engine": pairs[0][0][0],
            "without_ms": without,
            "with_ms": together,
            "term_ms": together - without,
        }
        print(m, report[m], flush=True)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(machine())
    X, y = load_digits(return_X_y=True)
    pictures = X[:512].reshape(-1, 1, 8, 8).astype(np.float32)
    numbers = {
        "term": terms(20 if options.quick else 400),
        "steps_mlp": steps(MLP, X, y, 1 if options.quick else 9),
        "steps_cnn": steps(SmallCNN, pictures, y[:512], 1 if options.quick else 3),
    }
    write("sed", numbers, options.out)


if __name__ == "__main__":
    main()
