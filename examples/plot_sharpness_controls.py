"""
Is a flatter network a better one?
==================================

SAM makes networks flatter, and often better. Augmentation and weight decay also make
networks better. This example measures the sharpness of networks with and without these
controls, and asks whether the flatter network is the better one: among networks that
differ in SAM only, and among all of them.
"""

# %%
# Data
# ----
# Digits of 8 x 8 pixels, two hundred of them for training, so that there are errors left
# to compare. Augmentation adds four copies of each, moved by one pixel.
import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=200, stratify=y, random_state=0
)


def moved(X, down, right):
    images = np.pad(X.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    rows, columns = slice(1 - down, 9 - down), slice(1 - right, 9 - right)
    return images[:, rows, columns].reshape(-1, 64)


steps = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
X_augmented = np.concatenate([moved(X_train, down, right) for down, right in steps])
y_augmented = np.tile(y_train, len(steps))

# %%
# Train
# -----
# Four controls, each with SGD and with SAM, five networks each, for as many steps.
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

controls = {  # images, classes, weight decay
    "no control": (X_train, y_train, 0.0),
    "augmentation": (X_augmented, y_augmented, 0.0),
    "weight decay": (X_train, y_train, 5e-3),
    "both": (X_augmented, y_augmented, 5e-3),
}
optimizers = {"SGD": "none", "SAM": "all"}  # samples with a SAM step
ensembles = {
    (control, optimizer): SharpBalanceEnsembleClassifier(
        n_estimators=2 if FAST else 5,
        max_epochs=(5 if FAST else 200) * len(X_train) // len(images),
        estimator__optimizer=torch.optim.SGD,
        estimator__optimizer__momentum=0.9,
        estimator__optimizer__weight_decay=weight_decay,
        lr=0.05,
        batch_size=32,
        selection=selection,
        warmup_epochs=0,
        rho=0.2,
        random_state=0,
    ).fit(images, classes)
    for control, (images, classes, weight_decay) in controls.items()
    for optimizer, selection in optimizers.items()
}

# %%
# Measure
# -------
# Three measures of sharpness on the training images, for each network by itself.
# Larger is sharper.
from sklearn_sharpbalance.metrics import (
    adaptive_sharpness,
    fisher_rao_norm,
    relative_flatness,
)

measures = {
    "Fisher-Rao norm": fisher_rao_norm,
    "relative flatness": relative_flatness,
    "worst-case sharpness": adaptive_sharpness,
}
sharpness = {
    (name, condition): measure(clf, X_train, y_train, per_member=True, random_state=0)
    for name, measure in measures.items()
    for condition, clf in ensembles.items()
}
accuracy = {
    condition: (clf.member_predict_proba(X_test).argmax(-1) == y_test).mean(-1)
    for condition, clf in ensembles.items()
}
print("condition           accuracy  Fisher-Rao  relative  worst-case")
for condition, each in accuracy.items():
    norm, relative, worst = (sharpness[name, condition].mean() for name in measures)
    print(
        f"{', '.join(condition):18}  {100 * each.mean():6.1f} %  {norm:10.1e}  "
        f"{relative:8.2f}  {worst:10.4f}"
    )

# %%
# The figure
# ----------
# A point for each network. Within each control (a colour) the networks of SAM are
# flatter and a little better. Yet the best networks are not the flattest ones:
# augmentation and weight decay make networks better and sharper.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(
    1, len(measures), figsize=(11, 4), sharey=True, layout="constrained"
)
for ax, name in zip(axes, measures):
    for i, control in enumerate(controls):
        for optimizer, marker in (("SGD", "o"), ("SAM", "^")):
            ax.plot(
                sharpness[name, (control, optimizer)],
                100 * accuracy[control, optimizer],
                marker,
                color=f"C{i}",
                label=f"{control}, {optimizer}",
            )
    ax.set(xlabel=name, xscale="log")
    ax.grid(color="0.9")
axes[0].set_ylabel("Accuracy of a network (%)")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)

# %%
# Rank correlations
# -----------------
# Of sharpness with accuracy: -1 means that the flatter network is always the better one.
# Within controls the correlation is negative for all three measures; over all networks
# it is positive. So compare the sharpness of networks that were trained alike, and do not
# select a network by its sharpness. For images of CIFAR-10 see :doc:`/results`.
from scipy.stats import spearmanr

for name in measures:
    within = [
        spearmanr(
            np.concatenate([sharpness[name, (control, o)] for o in optimizers]),
            np.concatenate([accuracy[control, o] for o in optimizers]),
        ).statistic
        for control in controls
    ]
    together = spearmanr(
        np.concatenate([sharpness[name, condition] for condition in ensembles]),
        np.concatenate([accuracy[condition] for condition in ensembles]),
    ).statistic
    print(
        f"{name:20}  within controls {np.mean(within):+.2f}  all networks {together:+.2f}"
    )

plt.show()
