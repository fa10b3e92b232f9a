"""
Fine-tuning a frozen trunk into members that disagree
=====================================================

A network that was trained elsewhere becomes the trunk of a whole ensemble: it stays as
it is, its features are computed once, and each member trains a small head of its own.
Such heads are cheap, and too much alike: on pictures unlike any training picture they
agree as if they knew. Scalable Ensemble Diversification (SED) makes them pay for
agreeing on hard samples, and their disagreement becomes a detector of foreign pictures.
"""

import os

import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SmallCNN,
)
from sklearn_sharpbalance.metrics import (
    bma_score,
    ood_auroc,
    predictive_diversity_score,
    unique_predictions,
)

# %%
# A trunk from another task
# -------------------------
# The digits 0 to 5 stand for the large data set that somebody else trained on. The
# trunk is that network without its last layer. It sees pictures as they are, so it
# brings the standardisation along that it was trained with.

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # the test-suite runs a shorter story

X, y = load_digits(return_X_y=True)
X = X.reshape(-1, 1, 8, 8).astype(np.float32)
elsewhere = y <= 5

pretrained = DeepEnsembleClassifier(
    SmallCNN, n_estimators=1, max_epochs=1 if FAST else 5, random_state=0
).fit(X[elsewhere], y[elsewhere])


class Trunk(nn.Module):
    def __init__(self, member):
        super().__init__()
        self.member = member
        self.layers = member.module[:-1]

    def forward(self, x):
        return self.layers(self.member.standardize(x))


trunk = Trunk(pretrained.estimators_[0].module_)

# %%
# Heads for a new task
# --------------------
# The task at hand: digits 6 to 9, three hundred of them labelled. Digits of the other
# classes will be the foreign pictures: nobody told the heads that there are any.

X_train, X_test, y_train, y_test = train_test_split(
    X[~elsewhere],
    y[~elsewhere],
    train_size=300,
    stratify=y[~elsewhere],
    random_state=0,
)
foreign = X[elsewhere]


def fine_tune(diversity_weight):
    return DiversifiedEnsembleClassifier(
        n_estimators=5,
        shared_trunk=trunk,
        diversity_weight=diversity_weight,
        estimator__module__hidden=(64,),
        max_epochs=2 if FAST else 40,
        batch_size=32,
        random_state=0,
    ).fit(X_train, y_train)


weights = [0.0, 0.03, 0.1, 0.3, 1.0]
ensembles = {weight: fine_tune(weight) for weight in weights}
print(ensembles[0.1].engine_)

# %%
# What diversity buys
# -------------------
# Two scores may tell foreign pictures: the confidence of the mean prediction (BMA) and
# the predictive diversity score (PDS), which rises where members put their trust in
# different classes. Without the pair loss neither knows much. With it PDS does, at the
# same accuracy; the largest weight begins to cost some.


def report(clf):
    known, other = clf.member_predict_proba(X_test), clf.member_predict_proba(foreign)
    return {
        "accuracy": clf.score(X_test, y_test),
        "unique": unique_predictions(other),
        "PDS": ood_auroc(*map(predictive_diversity_score, (known, other))),
        "BMA": ood_auroc(-bma_score(known), -bma_score(other)),
    }


reports = {weight: report(clf) for weight, clf in ensembles.items()}
print("lambda  accuracy  unique predictions  AUROC of PDS  of BMA")
for weight, row in reports.items():
    print(
        f"{weight:6.2f}  {row['accuracy']:8.3f}  {row['unique']:18.2f}  "
        f"{row['PDS']:12.3f}  {row['BMA']:6.3f}"
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained")
places = range(len(weights))
for key, label, marker in (
    ("accuracy", "accuracy on known digits", "o"),
    ("PDS", "AUROC of PDS", "s"),
    ("BMA", "AUROC of BMA", "^"),
):
    values = [reports[w][key] for w in weights]
    left.plot(places, values, marker=marker, label=label)
left.set_xticks(places, weights)
left.set(xlabel="diversity_weight", ylabel="accuracy, AUROC", ylim=(0.3, 1.02))
left.legend(loc="lower right")

bins = np.linspace(0.25, 0.5, 26)
for weight, color in ((0.0, "C7"), (0.3, "C1")):
    for pictures, style, name in ((X_test, "-", "known"), (foreign, "--", "foreign")):
        score = predictive_diversity_score(
            ensembles[weight].member_predict_proba(pictures)
        )
        share = [np.mean(score >= edge) for edge in bins]
        right.plot(bins, share, style, color=color, label=f"{name}, weight {weight}")
right.set(xlabel="PDS", ylabel="share of pictures above", yscale="log")
right.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

# %%
# Members are whole networks
# --------------------------
# ``estimators_`` take pictures: each is the trunk, shared in memory, and its own head.

member = ensembles[0.3].estimators_[0]
n_trunk = sum(p.numel() for p in member.module_.trunk.parameters())
n_head = sum(p.numel() for p in member.module_.head.parameters())
print(f"{n_trunk} weights in the one trunk, {n_head} in each head")
print("accuracy of one member:", np.mean(member.predict(X_test) + 6 == y_test))

plt.show()
