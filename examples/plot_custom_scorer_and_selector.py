"""
A scorer and a selector of your own
===================================

``sharpness`` scores samples, and ``selection`` decides which members apply SAM to which
of them. Both take a name, an object or a function. This example defines a scorer, the
margin to the decision boundary, and a selector that gives every sharp sample to exactly
one member.
"""

# %%
# A selector as a function
# ------------------------
# It gets the scores of all members, of shape (members, samples), and returns a mask of the
# same shape. Here the members get the samples of the sharpest half in turn, so that none
# is in two sets.
import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
EPOCHS = 4 if FAST else 30


def in_turn(sharpness, random_state):
    """Give every sample of the sharpest half to one member."""
    n_members, n_samples = sharpness.shape
    sharpest = np.argsort(-sharpness.mean(axis=0))[: n_samples // 2]
    masks = np.zeros(sharpness.shape, dtype=bool)
    masks[np.arange(len(sharpest)) % n_members, sharpest] = True
    return masks


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
clf = SharpBalanceEnsembleClassifier(
    selection=in_turn, max_epochs=EPOCHS, random_state=0
)
clf.fit(X_train, y_train)
print(f"accuracy {clf.score(X_test, y_test):.3f}")
print("samples in two sets:", int((clf.sam_masks_.sum(axis=0) > 1).sum()))

# %%
# A scorer as a class
# -------------------
# It has one method, which gets a skorch net and returns one score per sample, larger for
# sharper; it must not change the net. ``degree = 0`` means that sample weights do not
# change the score. Parameters of ``__init__`` can be searched over.
from sklearn_sharpbalance.sharpness import SharpnessScorer


class MarginScorer(SharpnessScorer):
    """Score samples by their margin to the next class; a small one is sharp."""

    degree = 0

    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def score_samples(self, net, X, y):
        """Return the sigmoid of the best other logit minus that of the label."""
        net.module_.eval()
        with torch.no_grad():
            logits = net.infer(X).cpu() / self.temperature  # (N, C)
        y = torch.as_tensor(y)[:, None]
        right = logits.gather(1, y)[:, 0]
        others = logits.scatter(1, y, -torch.inf).max(dim=1).values
        return torch.sigmoid(others - right)


clf.set_params(sharpness=MarginScorer()).fit(X_train, y_train)
print(f"accuracy {clf.score(X_test, y_test):.3f}")

# %%
# Does another scorer choose other samples?
# -----------------------------------------
# The default scorer and this one score the same members: scores are computed after the
# warm-up, which does not depend on them.
import matplotlib.pyplot as plt
from scipy.stats import spearmanr

default = SharpBalanceEnsembleClassifier(max_epochs=EPOCHS, random_state=0)
default.fit(X_train, y_train)
fisher, margin = default.sharpness_[0], clf.sharpness_[0]
correlation = spearmanr(fisher, margin).statistic

fig, ax = plt.subplots(figsize=(5.5, 4), layout="constrained")
ax.scatter(fisher, margin, s=8, alpha=0.6)
ax.set(xscale="log", yscale="log", xlabel="Fisher trace", ylabel="margin score")
ax.set_title(f"Samples seen by one member, rank correlation {correlation:.3f}")

# %%
# The two rank the digits nearly alike: a sample with a small margin has a large gradient.
# The margin costs a forward pass; the Fisher trace needs a backward pass, too.
#
# Register a name
# ---------------
# A scorer that is registered under a name can be used like the built-in ones. Its
# parameters are set with a double underscore, for example in a search.
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS

SHARPNESS_SCORERS["margin"] = MarginScorer
named = SharpBalanceEnsembleClassifier(
    sharpness="margin", max_epochs=3 if FAST else 10, n_estimators=2, random_state=0
)
search = GridSearchCV(named, {"sharpness__temperature": [1.0, 4.0]}, cv=2)
search.fit(X_train, y_train)
print(search.best_params_, f"{search.best_score_:.3f}")
