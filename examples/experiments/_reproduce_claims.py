"""The table of claims on the page of results, and the first figure of the README."""

from typing import NamedTuple

import numpy as np
from _reproduce_figures import BLUE, COLORS, ORANGE
from _reproduce_methods import BASELINE, SAME_SECONDS
from _reproduce_records import by_method, difference, holm
from _reproduce_tables import row, signed

__all__ = ["claims", "gain_figure"]

SAME_EPOCHS, SAME_COST = "same epochs", "same cost"
SPLIT = "flattest, split"
CLEAN, CORRUPTED = "accuracy", "corrupted_accuracy"
AGAIN = "reestimated_corrupted_accuracy"  # BatchNorm statistics after the training


class Claim(NamedTuple):
    """A question, its answer, and the difference of two methods that is its evidence."""

    question: str
    answer: str
    run: str
    group: str
    pair: tuple[str, str]
    metric: str


CLAIMS = (
    Claim(
        "1. Does a larger radius make the members of a SAM ensemble more alike?",
        "yes: DER falls with `rho`",
        *("tradeoff", "SAM", ("SAM, rho 0.4", "SAM, rho 0.05"), "der"),
    ),
    Claim(
        "2. Is SharpBalance more accurate on corrupted images for the same passes?",
        "not shown",
        *("attribution", SAME_COST, ("flattest", BASELINE), CORRUPTED),
    ),
    Claim(
        "3. And than with random samples?",
        "not shown",
        *("attribution", SAME_COST, ("flattest", "random"), CORRUPTED),
    ),
    Claim(
        "4. With both kinds of samples in a batch, normalised apart, as in its code?",
        "yes, with narrow nets",
        *("attribution", SAME_COST, (SPLIT, BASELINE), CORRUPTED),
    ),
    Claim(
        "5. And so without SAM, with a radius of 0?",
        "yes: batch normalisation makes the gain",
        *("attribution", SAME_COST, (f"{SPLIT}, radius 0", BASELINE), CORRUPTED),
    ),
    Claim(
        "6. Does the paper's recipe gain over a deep ensemble of as many epochs?",
        "yes, less than in the paper (1.49)",
        *("headline", SAME_EPOCHS, ("flattest", BASELINE), CORRUPTED),
    ),
    Claim(
        "7. Does it gain over a SAM ensemble?",
        "yes, less than in the paper (1.00)",
        *("headline", SAME_EPOCHS, ("flattest", "SAM"), CORRUPTED),
    ),
    Claim(
        "8. Is the rule of the paper's code better than that of its text?",
        "yes",
        *("headline", SAME_EPOCHS, ("flattest", "sharpest"), CORRUPTED),
    ),
    Claim(
        "9. Is it better than random sets?",
        "not shown",
        *("ablation", SAME_EPOCHS, ("flattest", "random"), CORRUPTED),
    ),
    Claim(
        "10. On digits, do twice the members gain for the same passes?",
        "yes",
        "confirm",
        SAME_COST,
        ("deep ensemble, twice the members", BASELINE),
        CORRUPTED,
    ),
    Claim(
        "11. For the same seconds, does the default gain on CIFAR-100?",
        "yes",
        *("seconds_cifar100", SAME_SECONDS, ("default", BASELINE), CORRUPTED),
    ),
    Claim(
        "12. And with BatchNorm statistics computed again?",
        "yes, two thirds",
        *("seconds_cifar100", SAME_SECONDS, ("default", BASELINE), AGAIN),
    ),
    Claim(
        "13. Does it gain on CIFAR-10?",
        "not shown",
        *("seconds_cifar10", SAME_SECONDS, ("default", BASELINE), CORRUPTED),
    ),
    Claim(
        "14. And with BatchNorm statistics computed again?",
        "no, it loses",
        *("seconds_cifar10", SAME_SECONDS, ("default", BASELINE), AGAIN),
    ),
    Claim(
        "15. And on clean images of CIFAR-10?",
        "no, it loses",
        *("seconds_cifar10", SAME_SECONDS, ("default", BASELINE), CLEAN),
    ),
)


def claims(results):
    """Return a Markdown table of all claims; ``results`` is {run: records}."""
    found = []
    for claim in CLAIMS:
        methods = by_method(results[claim.run], claim.group)
        ours, others = (methods[name] for name in claim.pair)
        each = difference(results[claim.run], ours, others, claim.metric)
        found.append((claim, each, len(ours.keys() & others.keys())))
    adjusted = holm([each.p_value for _, each, _ in found])
    lines = ["| question | answer | difference | p | ensembles | all numbers |"]
    lines.append("|---|---|---|---|---|---|")
    for (claim, each, n), p_value in zip(found, adjusted):
        points = claim.metric.endswith("accuracy")
        told = signed(each) + " points" if points else signed(each, 1, 3)
        page = f"[table](results/reproduce_{claim.run}.md)"
        p_told = "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
        cells = [claim.question, claim.answer, told, p_told, str(n), page]
        lines.append(row(cells))
    return "\n".join(lines) + "\n"


def gain_figure(results):
    """Return a figure of accuracy over a deep ensemble of as many seconds."""
    import matplotlib.pyplot as plt

    runs = {"CIFAR-100": "seconds_cifar100", "CIFAR-10": "seconds_cifar10"}
    figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for shift, color, label, metric in (
        (-0.15, ORANGE, "corrupted images", CORRUPTED),
        (0, COLORS[3], "the same, BatchNorm statistics renewed", AGAIN),
        (0.15, BLUE, "clean images", CLEAN),
    ):
        found = []
        for run in runs.values():
            methods = by_method(results[run], SAME_SECONDS)
            pair = methods["default"], methods[BASELINE]
            found.append(difference(results[run], *pair, metric))
        x = np.arange(len(found)) + shift
        bars = {"yerr": [100 * each.half for each in found], "fmt": "o", "capsize": 4}
        ax.errorbar(x, [100 * f.mean for f in found], **bars, c=color, label=label)
    ax.axhline(0, color="0.5", lw=1)
    ax.set_xticks(range(len(runs)), list(runs))
    ax.set_xlim(-0.5, len(runs) - 0.5)
    ax.set_ylabel("Points over a deep ensemble")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure
