"""
Which samples get SAM?
======================

After the warm-up every member scores the training samples by sharpness. From the scores
of the *other* members follows the set of samples that a member applies SAM to. This
example shows the scores and the sets: which samples are sharp, whether members agree
about it, and how much their sets overlap.
"""

# %%
# Digits, some of them with a wrong label
# ---------------------------------------
# One label in twenty is replaced by another, so that some hard samples are known.
import os

import numpy as np
from sklearn.datasets import load_digits

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
wrong = rng.random(len(y)) < 0.05
y = np.where(wrong, (y + rng.integers(1, 10, size=len(y))) % 10, y)

clf = SharpBalanceEnsembleClassifier(
    n_estimators=4, flat_ratio=0.1, max_epochs=4 if FAST else 30, random_state=0
)
clf.fit(X, y)

# %%
# The sets
# --------
# ``sam_masks_`` has the set of each member. The default rule, ``"flattest"``, is that of
# the paper's released code: the tenth (``flat_ratio``) of the samples that each of the
# other members finds flattest, and three quarters of the samples that are in no member's
# tenth. Each member leaves out another quarter. The rule of the paper's text,
# ``"sharpest"``, takes the tenth that each of the other members finds sharpest.
import matplotlib.pyplot as plt
from sklearn.metrics import ConfusionMatrixDisplay

from sklearn_sharpbalance.plotting import subset_overlap
from sklearn_sharpbalance.selection import SharpestSelector

sharpest = SharpestSelector(flat_ratio=0.1).select(clf.sharpness_)
figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
for ax, rule, masks in zip(axes, ("flattest", "sharpest"), (clf.sam_masks_, sharpest)):
    matrix = ConfusionMatrixDisplay(subset_overlap(masks))  # Jaccard indices
    matrix.plot(
        ax=ax, values_format=".2f", cmap="cividis", im_kw={"vmin": 0, "vmax": 1}
    )
    ax.set(xlabel="Member", ylabel="Member")
    ax.set_title(f'"{rule}": {masks.mean():.0%} of the samples')

# %%
# The sets of ``"sharpest"`` are small and much alike, because members agree about the
# sharpest samples. The rank correlations of their scores:
from scipy.stats import spearmanr

print(spearmanr(clf.sharpness_, axis=1).statistic.round(2))

# %%
# The predictions of the members
# ------------------------------
# The fraction of samples on which two members predict different classes.


def plot_disagreement(member_probas):
    """Draw the disagreement of each pair of members as a matrix."""
    names = [f"Member {i}" for i in range(len(member_probas))]
    predictions = member_probas.argmax(axis=-1)  # (M, N)
    fractions = np.array([(predictions != own).mean(axis=1) for own in predictions])
    matrix = ConfusionMatrixDisplay(fractions, display_labels=names)
    matrix.plot(values_format=".3f", cmap="cividis")
    matrix.ax_.set(xlabel="", ylabel="", title="Disagreement of members")


plot_disagreement(clf.member_predict_proba(X))

# %%
# The sharpest images
# ---------------------
# A row per member; above each image its label, right or wrong, and its score: the squared
# norm of the gradient of that sample's loss. Many images are in several rows.
figure, axes = plt.subplots(
    len(clf.sharpness_), 8, figsize=(8.5, 4), layout="constrained"
)
for member, (row, scores) in enumerate(zip(axes, clf.sharpness_)):
    row[0].set_ylabel(f"Member {member}")
    for ax, sample in zip(row, np.argsort(-scores)):
        ax.imshow(X[sample].reshape(8, 8), cmap="gray")
        ax.set_title(f"{y[sample]}\n{scores[sample]:.3g}", fontsize=8)
        ax.set(xticks=[], yticks=[])

# %%
# Nearly all of the sharpest five per cent have a wrong label. So ``"sharpest"`` applies
# SAM to all wrong labels, ``"flattest"`` to three quarters of them.
n = round(0.05 * len(y))
for member, scores in enumerate(clf.sharpness_):
    top = np.argsort(-scores)[:n]
    print(f"member {member}: {wrong[top].mean():.0%} of {n} have a wrong label")
for rule, masks in {"flattest": clf.sam_masks_, "sharpest": sharpest}.items():
    print(f"{rule}: SAM for {masks[:, wrong].mean():.0%} of the wrong labels")
