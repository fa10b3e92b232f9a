"""
Fine-tuning a torchvision network
=================================

The usual way to few labelled images: take a pretrained network of torchvision with the
preprocessing of its weights, give it a new head, and train both, the pretrained layers
(the backbone) at a lower learning rate than the head. Here each member of an ensemble is
such a network. The figure shows what the rate of the backbone decides: how accurate the
members are, and how much they differ.

The example runs without a download. With real weights change the line that is marked,
and remove the section after it.
"""

import os
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torchvision import models

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.datasets import pairs
from sklearn_sharpbalance.metrics import disagreement
from sklearn_sharpbalance.networks import finetune

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
WEIGHTS = models.ShuffleNet_V2_X0_5_Weights.DEFAULT

# %%
# The network and its preprocessing
# ---------------------------------

torch.manual_seed(0)
backbone = models.shufflenet_v2_x0_5(weights=None)  # real ones: weights=WEIGHTS
# For photos WEIGHTS.transforms(), which resizes and crops them to 224 x 224.
preprocess = WEIGHTS.transforms(crop_size=32, resize_size=32)
print(preprocess)

# %%
# The images are the scanned digits of scikit-learn, as Pillow images. In your own code
# the list has paths, and ``transform`` opens a file: ``lambda path:
# preprocess(Image.open(path).convert("RGB"))``. ``fit`` transforms each image once for
# all members.

X, y = load_digits(return_X_y=True)
pixels = (X.reshape(-1, 8, 8) * 15.9).astype(np.uint8)
images = [Image.fromarray(image).convert("RGB") for image in pixels]


def dataset(rows):
    return pairs([images[i] for i in rows], y=y[rows], transform=preprocess)


# %%
# A stand-in for pretrained weights
# ---------------------------------
# The backbone learns the digits 0 to 4 first. With real weights remove this section.

pretrained = DeepEnsembleClassifier(
    partial(finetune, backbone),
    n_estimators=1,
    max_epochs=1 if FAST else 4,
    batch_size=64,
    lr=0.05,
    standardize=False,
    random_state=0,
).fit(dataset(np.flatnonzero(y < 5)))
backbone = pretrained.estimators_[0].module_.module

# %%
# Different rates for backbone and head
# -------------------------------------
# The task: digits 5 to 9, one hundred of them labelled. ``partial(finetune, backbone)``
# makes a member: the pretrained layers, and a new head. A module instance would lose its
# weights, since an ensemble initialises it again for each member.
#
# ``lr`` is the rate of the backbone. The parameter group gives another one to all weights
# whose names match the pattern; the head of a ShuffleNet or ResNet is called ``fc``. Both
# rates follow the schedule. ``trainable="head"`` trains nothing else. The preprocessing
# has standardised the images, so the ensemble does not. On a GPU the layers compute
# channels-last, which is fast with ``precision="bf16"``.

HEAD_RATE = 0.1
rows = np.flatnonzero(y >= 5)
train, test = train_test_split(
    rows, train_size=100, test_size=300, stratify=y[rows], random_state=0
)


def fine_tune(backbone_rate, trainable="all"):
    return SharpBalanceEnsembleClassifier(
        partial(finetune, backbone),
        estimator__module__trainable=trainable,
        estimator__optimizer__param_groups=[("fc.*", {"lr": HEAD_RATE})],
        lr=backbone_rate,
        n_estimators=3,
        max_epochs=1 if FAST else 6,
        batch_size=32,
        standardize=False,
        random_state=0,
    ).fit(dataset(train))


ensembles = {
    "frozen": fine_tune(HEAD_RATE, trainable="head"),
    "lower\n0.03": fine_tune(0.03),
    "as the head\n0.1": fine_tune(HEAD_RATE),
}
print(ensembles["lower\n0.03"].engine_)

# %%
# Which rate for the backbone?
# ----------------------------

of_members, of_ensembles, differing = [], [], []
for clf in ensembles.values():
    probas = clf.member_predict_proba(dataset(test))  # (M, N, C)
    labels = clf.classes_[probas.argmax(2)]
    of_members.append(np.mean(labels == y[test], axis=1))
    of_ensembles.append(clf.score(dataset(test)))
    differing.append(disagreement(probas))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for i in range(3):
    accuracies = [members[i] for members in of_members]
    left.plot(accuracies, "o", color="0.6", label=None if i else "its members")
left.plot(list(ensembles), of_ensembles, "_", ms=30, mew=3, label="ensemble")
left.set(ylabel="accuracy on test images", ylim=(None, 1))
left.legend()
right.bar(list(ensembles), differing, width=0.5)
right.set(ylabel="fraction of images on which\ntwo members disagree")
for ax in (left, right):
    ax.set(xlabel="learning rate of the backbone", xlim=(-0.5, 2.5))

# %%
# A frozen backbone does not know the new digits. At a lower rate than the head it learns
# them, and the ensemble is more accurate than its members. At the rate of the head the
# members lose their common start: they differ most, and are less accurate. The best rate
# depends on the data; search it with a validation set.
#
# New images pass through the same preprocessing; they need no labels.

new = pairs([images[i] for i in test[:5]], transform=preprocess)
print(ensembles["lower\n0.03"].predict(new), y[test[:5]])

plt.show()
