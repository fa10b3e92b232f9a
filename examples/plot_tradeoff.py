"""
Flatter members are more alike: the trade-off
=============================================

SAM with a larger radius ``rho`` makes the members of an ensemble flatter, and more alike.
SharpBalance applies SAM only to samples that the *other* members propose. This
example trains both over four radii with three seeds each, and draws diversity against
sharpness.

``python examples/plot_tradeoff.py figure.png`` writes the figure to a file.
"""

# %%
# Data
# ----
# A table with four classes that overlap, so that there are errors to compare: 1200
# samples for training, 2800 for the test.
import os
import sys

from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests

X, y = make_classification(
    n_samples=400 if FAST else 4000,
    n_features=20,
    n_informative=10,
    n_redundant=4,
    n_classes=4,
    n_clusters_per_class=3,
    flip_y=0.05,
    random_state=0,
)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.7, stratify=y, random_state=0
)

# %%
# Train over rho
# --------------
# One call. ``selection="all"`` is SAM on all samples. Sharpness is the largest rise of the
# training loss when every weight may move in proportion to its size, in the mean over
# members; diversity is the disagreement-error ratio (DER) on the test samples: how often
# two members differ, over how often one is wrong.
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.evaluation import tradeoff_curve

curve = tradeoff_curve(
    SharpBalanceEnsembleClassifier(
        estimator__module__hidden=(64, 64),
        sam="sam",
        max_epochs=2 if FAST else 25,
        flat_ratio=0.2,
        warmup="sgd",
        warmup_epochs=0.2,
    ),
    X_train,
    y_train,
    X_test=X_test,
    y_test=y_test,
    rho=[0.1, 0.2, 0.4] if FAST else [0.05, 0.1, 0.2, 0.4],
    other={"selection": ["all", "flattest"]},
    seeds=2 if FAST else 3,
    sharpness={"n_batches": 1 if FAST else 5},
)
measures = ["sharpness", "disagreement_error_ratio"]
measures += ["member_accuracy", "ensemble_accuracy"]
table = curve.groupby(["selection", "rho"])[measures]
mean, spread = table.mean(), table.std()  # over the seeds
mean.assign(spread_of_accuracy=spread["ensemble_accuracy"]).round(4)

# %%
# The figure
# ----------
# Each point is the mean over the seeds, its bars are one standard deviation, the number
# beside it is ``rho``. Along each line members become flatter (to the left) and more alike
# (down). SharpBalance and SAM lie on one curve on this table; with the same ``rho``,
# SharpBalance goes less far along it. The colour is the accuracy of the ensemble, which
# a large ``rho`` lowers here.
import matplotlib.pyplot as plt

from sklearn_sharpbalance.plotting import TradeoffDisplay

figure, ax = plt.subplots(figsize=(6.8, 4.6), layout="constrained")
names = {"all": "SAM on all samples", "flattest": "SharpBalance"}
sharpness, der = mean["sharpness"], mean["disagreement_error_ratio"]
display = TradeoffDisplay(
    sharpness,
    der,
    color=100 * mean["ensemble_accuracy"],
    labels=[str(rho) for _, rho in mean.index],
    groups=[names[selection] for selection, _ in mean.index],
    sharpness_name="Worst-case sharpness of a member",
    diversity_name="Disagreement-error ratio",
    color_name="Accuracy of the ensemble (%)",
).plot(ax)
ax.errorbar(
    sharpness,
    der,
    xerr=spread["sharpness"],
    yerr=spread["disagreement_error_ratio"],
    fmt="none",
    ecolor="0.8",
    elinewidth=1,
    zorder=0,
)
for text in display.texts_:  # readable across a bar
    text.set_bbox({"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5})
figure.suptitle("Flatter members are more alike")
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=130)

# %%
# Slopes
# ------
# The slope of each line is the diversity lost for a unit of sharpness. One synthetic table
# says little about other data; measurements on digits and images are among the
# :doc:`results </results>`.
for name, slope in display.slopes_.items():
    print(f"{name}: slope {slope:.2f}")
