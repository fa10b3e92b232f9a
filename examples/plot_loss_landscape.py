"""
How flat are the members, and how high is the loss between them?
================================================================

Slices through the loss: around one member along a random direction, on the line from one
member to another, and on the plane through three.
"""

# %%
# Three ensembles
# ---------------
# They have the same initial weights and batches. Only the rule that selects samples for
# SAM differs.
import os

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.plotting import LossLandscapeDisplay

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
N_POINTS = 3 if FAST else 25
COMMON = {"max_epochs": 2 if FAST else 40, "random_state": 0}

X, y = make_classification(
    n_samples=150 if FAST else 1200,
    n_informative=10,
    n_classes=4,
    flip_y=0.05,
    random_state=0,
)
flat = {"sam": "sam", "rho": 0.2, "warmup": "sgd", "warmup_epochs": 0.2, **COMMON}
ensembles = {
    "deep ensemble": DeepEnsembleClassifier(**COMMON),
    "SharpBalance": SharpBalanceEnsembleClassifier(flat_ratio=0.2, **flat),
    "SAM": SharpBalanceEnsembleClassifier(selection="all", **flat),
}
for ensemble in ensembles.values():
    ensemble.fit(X, y)

# %%
# Around one member
# -----------------
# A direction is filter-normalised: a step of 1 moves every filter by its own norm, so
# that slices of networks with weights of different size can be compared. The loss rises
# most without SAM and least with SAM on all samples. SharpBalance, which applies SAM to
# a part of the samples, lies in between.
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for name, ensemble in ensembles.items():
    LossLandscapeDisplay.from_estimator(
        ensemble, X, y, span=0.6, n_points=N_POINTS, random_state=0, name=name, ax=ax
    )
fig.suptitle("Around the first member")

# %%
# From one member to another
# --------------------------
# Members that start from different weights end in different minima: the loss between
# them is high. So the mean of their weights is a bad network; the mean of their
# predictions is better than a member's.
fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
for ax, (name, ensemble) in zip(axes, ensembles.items()):
    LossLandscapeDisplay.from_estimator(
        ensemble, X, y, members=(0, 1), n_points=N_POINTS, ax=ax
    )
    ax.set_title(name)
    ax.locator_params(axis="x", nbins=4)
    ax.label_outer()

# %%
# The plane through three members
# -------------------------------
display = LossLandscapeDisplay.from_estimator(
    ensembles["SharpBalance"],
    X[:400],
    y[:400],
    members=(0, 1, 2),
    n_dims=2,
    n_points=3 if FAST else 21,
)
display.ax_.set_title("SharpBalance: three members, three minima")

# %%
# A slice shows one or two directions out of thousands. Measures over all directions are
# in :mod:`sklearn_sharpbalance.metrics`:
from sklearn_sharpbalance.metrics import adaptive_sharpness, hessian_top_eigenvalue

for name, ensemble in ensembles.items():
    batches = 1 if FAST else 10
    worst = adaptive_sharpness(ensemble, X, y, n_batches=batches, random_state=0)
    top = hessian_top_eigenvalue(ensemble, X, y, random_state=0)
    print(f"{name:13s} worst-case sharpness {worst:.3f}, largest curvature {top:.2f}")
