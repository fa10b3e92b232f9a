"""
Which samples do the members sharpen?
=====================================

After the warm-up every member scores the training samples, and each of the others applies
SAM to its sharpest ones. This example looks at the scores and at the sets: what is sharp,
do the members agree about it, and how much do their sets overlap?
"""

# %%
# Digits, some of them with a wrong label
# ---------------------------------------
# One label in twenty is replaced by another, so that we know some hard samples.
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
# ``sam_masks_`` says for each member which samples it applies SAM to: the union of the
# tenth of the samples that each of the three others finds sharpest. Three tenths would be
# the most; what is missing is what the others agree about. Here they agree about much, and
# so the sets of two members hardly differ.
from sklearn_sharpbalance.plotting import SubsetOverlapDisplay

print("share of the samples:", clf.sam_masks_.mean(axis=1).round(3))
display = SubsetOverlapDisplay.from_estimator(clf, X.reshape(-1, 8, 8), y)

# %%
# The sharpest pictures
# ---------------------
# A row per member; above each picture its label, right or wrong, and its score: the squared
# length of the gradient of that sample's loss. Nearly all of them are wrong labels or digits
# that a person would hesitate about, and many appear in several rows.
display.plot_hardest(n_images=8)

# %%
# Do scores find the wrong labels?
# --------------------------------
# Among the sharpest five per cent of each member:
n = round(0.05 * len(y))
for member, scores in enumerate(clf.sharpness_):
    top = np.argsort(-scores)[:n]
    print(
        f"member {member}: {wrong[top].mean():.0%} of the sharpest {n} are wrong labels"
    )

# %%
# So with noisy labels the sharpness-aware sets hold the noise. SAM is known to learn wrong
# labels more slowly, which may be what one wants. If it is not, another rule is a word
# away: ``selection="random"`` draws sets of the same size.
from scipy.stats import spearmanr

agreement = spearmanr(clf.sharpness_, axis=1).statistic
print("rank correlation of the members' scores", agreement.round(2), sep="\n")
