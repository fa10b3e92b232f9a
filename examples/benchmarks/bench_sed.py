"""What the pair term of SED costs in a step, against the number of members.

    python examples/benchmarks/bench_sed.py [--out DIR] [--quick]
    python examples/benchmarks/bench_sed.py --heads 50 --samples 50000 [--out DIR]

Two members are drawn in every step. The term on its own (forward and backward, from the
logits of all members) should take as long for sixteen members as for two; over all
pairs it grows with their square. Beside it the whole step, with and without the term,
for members that are stacked and for the same members as modules that run one after the
other: it grows with the number of members, since all of them pass the batch, and what
the term adds to it does not. Times are processor time of one thread, medians over
repetitions that alternate; differences are taken within a repetition, and their
quartiles show how far they can be trusted: the term is a fortieth of the longest step.

With ``--heads``, only heads of two layers on a frozen trunk are measured, on a GPU if
there is one: seconds of a fit of ten epochs by SED, whose trunk computes all features
once, and of fits without the term and of two heads. ``sed_heads.json`` has them.
"""

import argparse
import time
from functools import partial

import numpy as np
import torch
from _machine import machine, write
from sklearn.datasets import load_digits
from torch import nn

from sklearn_sharpbalance import MLP, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.joint.losses import sed_term

MEMBERS = (2, 4, 8, 16)
BATCH = 128
N_FEATURES = 512  # of the trunk, and hidden units of a head


class Alone(MLP):
    """The same network; a forward pass of its own keeps it from being stacked."""

    def forward(self, x):
        return super().forward(x)


def milliseconds(call):
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def side_by_side(calls, repeats, warm_up=3):
    """Milliseconds of each call in each repetition; calls alternate."""
    times = {name: [] for name in calls}
    for i in range(repeats + warm_up):
        for name, call in calls.items():
            spent = milliseconds(call)
            if i >= warm_up:
                times[name].append(spent)
    return {name: np.array(spent) for name, spent in times.items()}


def medians(times):
    return {name: round(float(np.median(spent)), 4) for name, spent in times.items()}


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
    drawn = medians(side_by_side({m: pair_term(m, 2) for m in MEMBERS}, repeats))
    every_pair = {m: pair_term(m, m) for m in MEMBERS}
    everyone = medians(side_by_side(every_pair, max(1, repeats // 4)))
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
        report[m] = medians(
            {
                "without_ms": without,
                "with_ms": together,
                "term_ms": together - without,
                "term_share": (together - without) / together,
            }
        )
        low, high = np.percentile(together - without, [25, 75]).round(4).tolist()
        report[m]["term_ms_quartiles"] = [low, high]
        print(m, report[m], flush=True)
    return report


class CountingTrunk(nn.Module):
    """A frozen layer that makes features, and counts the samples that it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, N_FEATURES)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen += len(x)
        return torch.relu(self.layer(x))


def fit_heads(X, y, n_heads, weight, n_epochs):
    """Seconds of a fit, the engine, and how often the trunk saw each sample."""
    torch.manual_seed(0)
    clf = DiversifiedEnsembleClassifier(
        n_estimators=n_heads,
        diversity_weight=weight,
        shared_trunk=CountingTrunk(),
        estimator__module__hidden=(N_FEATURES,),
        max_epochs=n_epochs,
        batch_size=BATCH,
        random_state=0,
    )
    start = time.perf_counter()
    clf.fit(X, y)  # the weights are on the host when it returns
    return {
        "fit_s": round(time.perf_counter() - start, 3),
        "epoch_s": round(float(np.median([row["dur"] for row in clf.history_[0]])), 4),
        "engine": clf.engine_.name,
        "device": clf.settings_["device"],
        "trunk_passes": clf.trunk_.module.seen.item() / len(X),
    }


def heads(n_heads, n_samples, n_epochs=10):
    """Rows of fits of heads: all of them by SED, without the term, and two."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_samples, 64)).astype(np.float32)
    y = rng.integers(10, size=n_samples)
    fit_heads(X[: 2 * BATCH], y[: 2 * BATCH], 2, 0.1, 1)  # loads kernels
    rows = {}
    for n, weight in ((n_heads, 0.1), (n_heads, 0.0), (2, 0.1), (2, 0.0)):
        rows[f"{n} heads, lambda {weight:g}"] = fit_heads(X, y, n, weight, n_epochs)
        print(n, weight, rows[f"{n} heads, lambda {weight:g}"], flush=True)
    return {"samples": n_samples, "epochs": n_epochs, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--heads", type=int, help="measure so many heads on a trunk")
    parser.add_argument("--samples", type=int, default=50_000, help="of the heads")
    options = parser.parse_args()
    if options.heads is not None:
        write("sed_heads", heads(options.heads, options.samples), options.out)
        return
    torch.set_num_threads(1)
    print(machine())
    X, y = load_digits(return_X_y=True)
    repeats = 1 if options.quick else 11
    term = terms(20 if options.quick else 1000)
    stacked, modules = steps(X, y, repeats), steps(X, y, repeats, estimator=Alone)
    numbers = {
        "term": term,
        "steps_stacked": stacked,
        "steps_modules": modules,
        "modules_over_stacked": {
            m: modules[m]["with_ms"] / stacked[m]["with_ms"] for m in MEMBERS
        },
    }
    write("sed", numbers, options.out)


if __name__ == "__main__":
    main()
