"""
Which ensemble, at the same cost?
=================================

SAM takes two gradients for each update. A fair comparison gives every method the same
number of them: :func:`~sklearn_sharpbalance.evaluation.compare` shortens the training
of those that cost more, measures all of them on clean and on corrupted digits, and
says how sure their ranking is.
"""

# %%
# Pictures
# --------
# A fifth of the digits is for training, so that there is something left to get wrong.
import os

import numpy as np
from sklearn.datasets import load_digits

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # the test-suite runs a shorter story

digits = load_digits()
X = (digits.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8)
y = digits.target

# %%
# The family
# ----------
# The same small network everywhere. The selection rules differ in the samples on which
# a member applies SAM: those that the *others* find sharp (SharpBalance), what the
# paper's released code takes, and as many at random.
from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.networks import MLP

network = {
    "estimator": MLP,
    "estimator__module__n_features": 64,
    "estimator__module__hidden": (64, 64),
    "max_epochs": 2 if FAST else 40,
    "batch_size": 32,
}


def balanced(selection):
    return SharpBalanceEnsembleClassifier(**network, rho=0.1, selection=selection)


methods = {
    "deep ensemble": DeepEnsembleClassifier(**network),
    "SAM ensemble": balanced("all"),
    "SharpBalance": balanced("sharpbalance"),
    "reference union": balanced("reference_union"),
    "reference boost": balanced("reference_boost"),
    "random sets": balanced("random"),
    "SED": DiversifiedEnsembleClassifier(**network),
}

# %%
# What they cost
# --------------
# In passes over the training set by one member. Before the fit the size of the SAM sets
# is an estimate; the report has what it came out at.
from sklearn_sharpbalance.evaluation import gradient_passes

for name, method in methods.items():
    print(
        f"{name:16} {gradient_passes(method):6.1f} passes of {method.max_epochs} epochs"
    )

# %%
# Train all of them at the cost of the first
# ------------------------------------------
# One split, three seeds, eight kinds of corruption. This takes about a minute.
from sklearn_sharpbalance.evaluation import compare

report = compare(
    methods,
    X,
    y,
    cv=0.8,  # the share of the test samples
    seeds=1 if FAST else 3,
    corruptions=["fog"] if FAST else ["noise", "weather", "pixelate"],
    sharpness={"n_batches": 1 if FAST else 10},
    n_bootstrap=20 if FAST else 1000,
    rank_by="corrupted_accuracy",
)
print(report.to_markdown())

# %%
# The ranking
# -----------
# ``rank`` is the mean place over the seeds; the difference to the best method is paired
# over seeds and test samples.
print(report.ranking)

# %%
# One figure
# ----------
# Left: accuracy of members (hollow) and ensembles (filled), clean and corrupted, with
# bootstrap intervals over the test samples. Middle: how far each method is from the
# best one on corrupted digits; an interval that reaches 0 leaves the order open. Right:
# the trade-off, flat members to the left, diverse ones at the top.
import matplotlib.pyplot as plt

from sklearn_sharpbalance.plotting import TradeoffDisplay

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(13, 4.2), layout="constrained", width_ratios=[1, 0.8, 1.2]
)
at = np.arange(len(report.methods))
for metric, color, shift in (
    ("accuracy", "#0072B2", -0.15),
    ("corrupted_accuracy", "#D55E00", 0.15),
):
    for part, face in (("members", "white"), ("ensemble", color)):
        rows = [report.row(method, metric, part) for method in report.methods]
        mean = np.array([row["mean"] for row in rows])
        if part == "ensemble":
            low, high = ([row[end] for row in rows] for end in ("low", "high"))
            left.hlines(at + shift, low, high, color=color, alpha=0.6)
        label = f"{metric.replace('_', ' ')}, {part}"
        left.scatter(mean, at + shift, c=face, edgecolors=color, zorder=3, label=label)
left.set_yticks(at, labels=report.methods)
left.invert_yaxis()
left.set_xlabel("Accuracy")
left.legend(
    fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False
)

ranking = report.ranking
place = [report.methods.index(method) for method in ranking["method"]]
middle.axvline(0, color="0.6", lw=1)
middle.hlines(
    place, ranking["difference_low"], ranking["difference_high"], color="#009E73"
)
middle.scatter(ranking["difference"], place, color="#009E73", zorder=3)
middle.set_ylim(left.get_ylim())
middle.set_yticks([])
middle.locator_params(axis="x", nbins=4)
middle.set_xlabel("Difference to the best (corrupted)")

TradeoffDisplay(
    [report.row(method, "sharpness", "members")["mean"] for method in report.methods],
    [report.row(method, "der")["mean"] for method in report.methods],
    color=[report.row(method, "eir")["mean"] for method in report.methods],
    labels=report.methods,
    sharpness_name="Adaptive worst-case sharpness of a member",
    diversity_name="Disagreement-error ratio (DER)",
    color_name="Ensemble improvement rate (EIR)",
).plot(right, fit=False)
for ax in (left, middle):
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", color="0.88")
