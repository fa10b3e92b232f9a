"""
A scorer and a selector of your own
===================================

Which samples are sharp, and who applies SAM to them, are two questions with two doors. Each
takes a name, an object or a plain function. This example answers both anew: sharp is what
lies close to the decision border, and every sharp sample goes to exactly one member.
"""

# %%
# A selector as a function
# ------------------------
# It gets the scores of all members, of shape (members, samples), and returns a mask of the
# same shape. Here the sharpest half is dealt out like cards: no sample goes to two members.
import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
EPOCHS = 4 if FAST else 30


def deal_out(sharpness, random_state):
    """Every sample of the sharpest half to one member."""
    n_members, n_samples = sharpness.shape
    sharpest = np.argsort(-sharpness.mean(axis=0))[: n_samples // 2]
    masks = np.zeros(sharpness.shape, dtype=bool)
    masks[np.arange(len(sharpest)) % n_members, sharpest] = True
    return masks


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
clf = SharpBalanceEnsembleClassifier(
    selection=deal_out, max_epochs=EPOCHS, random_state=0
)
clf.fit(X_train, y_train)
print(f"accuracy {clf.score(X_test, y_test):.3f}")
print("samples in two sets:", int((clf.sam_masks_.sum(axis=0) > 1).sum()))

# %%
# A scorer as a class
# -------------------
# One method. It gets a skorch net and returns one score per sample, larger for sharper; the
# net stays as it was. ``degree = 0`` says that sample weights do not change the score. A
# parameter of ``__init__`` can be searched over.
from sklearn_sharpbalance.sharpness import SharpnessScorer


class MarginScorer(SharpnessScorer):
    """Sharp is what the net hardly gets right: a small margin to the next class."""

    degree = 0

    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def score_samples(self, net, X, y):
        """The best other class against the right one, between 0 and 1."""
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
# The default scorer and this one, on the same members: both warm-ups are equal, since the
# scorer comes into play after them.
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
# On well-fitted digits the two rank nearly alike: a sample with a small margin has a large
# gradient. The margin costs a forward pass, the Fisher trace about as much as a backward
# pass more.
#
# A name for it
# -------------
# Registered under a name, a scorer is found like the built-in ones, and its parameters
# are reached with a double underscore, for example in a search.
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS

SHARPNESS_SCORERS["margin"] = MarginScorer
named = SharpBalanceEnsembleClassifier(
    sharpness="margin", max_epochs=3 if FAST else 10, n_estimators=2, random_state=0
)
search = GridSearchCV(named, {"sharpness__temperature": [1.0, 4.0]}, cv=2)
search.fit(X_train, y_train)
print(search.best_params_, f"{search.best_score_:.3f}")
