"""The table of claims on the page of results, and the first figure of the README."""

from typing import NamedTuple

import numpy as np
from _reproduce_figures import BLUE, ORANGE
from _reproduce_methods import BASELINE, SAME_SECONDS
from _reproduce_records import by_method, difference, student
from _reproduce_tables import row, signed

__all__ = ["claims", "gain_figure"]

SAME_EPOCHS, SAME_COST = "same epochs", "same cost"
SPLIT = "flattest, split"
CORRUPTED = "corrupted_accuracy"
POINTS, RATIO = "points", "%"


class Claim(NamedTuple):
    """A question, its answer, and the difference of two methods that is its evidence."""

    question: str
    answer: str
    run: str
    group: str
    pair: tuple[str, str]
    metric: str
    unit: str = POINTS


CLAIMS = (
    Claim(
        "1. Does a larger radius make the members of a SAM ensemble more alike?",
        "yes: DER falls with `rho`",
        *("tradeoff", "SAM", ("SAM, rho 0.4", "SAM, rho 0.05"), "der", ""),
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
        "11. On CIFAR-100, is the default more accurate for the same seconds?",
        "yes",
        *("seconds_cifar100", SAME_SECONDS, ("default", BASELINE), CORRUPTED),
    ),
)


def claims(results):
    """Return a Markdown table of all claims; ``results`` is {run: records}."""
    lines = ["| question | answer | difference | ensembles | all numbers |"]
    lines.append("|---|---|---|---|---|")
    for claim in CLAIMS:
        records = results[claim.run]
        methods = by_method(records, claim.group)
        ours, others = (methods[name] for name in claim.pair)
        lines.append(
            row(
                [
                    claim.question,
                    claim.answer,
                    measured(claim, records, ours, others),
                    str(len(ours.keys() & others.keys())),
                    f"[table](results/reproduce_{claim.run}.md)",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def measured(claim, records, ours, others):
    """Return the difference with its interval, in the unit of the claim."""
    if claim.unit == RATIO:
        seeds = sorted(ours.keys() & others.keys())
        pairs = [(ours[s][claim.metric], others[s][claim.metric]) for s in seeds]
        return signed(student(np.array([a / b - 1 for a, b in pairs])), 100, 1) + " %"
    found = difference(records, ours, others, claim.metric)
    return signed(found) + " points" if claim.unit else signed(found, 1, 3)


def gain_figure(records):
    """Return a figure of ``attribution``: accuracy over a deep ensemble."""
    import matplotlib.pyplot as plt

    methods = by_method(records, SAME_COST)
    shown = {
        "SharpBalance": "flattest",
        "random samples": "random",
        "both kinds in a batch,\nnormalised apart": SPLIT,
        "the same\nwithout SAM": f"{SPLIT}, radius 0",
    }
    figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for shift, color, label, metric in (
        (-0.1, ORANGE, "corrupted images", CORRUPTED),
        (0.1, BLUE, "clean images", "accuracy"),
    ):
        found = [
            difference(records, methods[name], methods[BASELINE], metric)
            for name in shown.values()
        ]
        x = np.arange(len(found)) + shift
        bars = {"yerr": [100 * each.half for each in found], "fmt": "o", "capsize": 4}
        ax.errorbar(x, [100 * f.mean for f in found], **bars, c=color, label=label)
    ax.axhline(0, color="0.5", lw=1)
    ax.set_xticks(range(len(shown)), list(shown))
    ax.set_ylabel("Points over a deep ensemble")
    ax.legend(frameon=False)
    return figure
