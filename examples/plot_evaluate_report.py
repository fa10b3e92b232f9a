"""
One report about an ensemble
============================

Is an ensemble accurate, calibrated, diverse, flat and robust, and better than a
baseline? :func:`~sklearn_sharpbalance.evaluation.evaluate` answers in one call, for
pictures of digits, their corrupted versions, and digits that were never learned.
"""

# %%
# Pictures
# --------
# Three fifths of the pictures of the digits 0 to 7 are for training. The eights and nines
# are foreign: nobody learns them, and an honest ensemble is unsure about them.
import os

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests

digits = load_digits()
pictures = (digits.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8)
known = digits.target < 8
X_train, X_test, y_train, y_test = train_test_split(
    pictures[known],
    digits.target[known],
    train_size=0.6,
    stratify=digits.target[known],
    random_state=0,
)

# %%
# Two methods with two seeds each, and a baseline
# -----------------------------------------------
# Any classifier with ``predict_proba`` may stand beside the ensembles. The random
# forest wants flat rows, so that it comes in a pipeline. Mind that SharpBalance, which
# passes many samples twice, costs nearly twice as much here as the deep ensemble: the
# example on comparing methods gives all of them the same compute.
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.networks import MLP


def flatten(X):
    return X.reshape(len(X), -1)


network = {
    "estimator": MLP,
    "estimator__module__n_features": 64,
    "estimator__module__hidden": (64,),
    "max_epochs": 2 if FAST else 20,
}
methods = {
    "deep ensemble": [
        DeepEnsembleClassifier(**network, random_state=seed) for seed in (0, 1)
    ],
    "SharpBalance": [
        SharpBalanceEnsembleClassifier(**network, rho=0.2, random_state=seed)
        for seed in (0, 1)
    ],
    "random forest": [
        make_pipeline(
            FunctionTransformer(flatten), RandomForestClassifier(random_state=seed)
        )
        for seed in (0, 1)
    ],
}
for runs in methods.values():
    for estimator in runs:
        estimator.fit(X_train, y_train)

# %%
# Everything in one call
# ----------------------
# Four kinds of corruption at five severities, foreign samples, and sharpness on the
# training samples, where SAM made it small. Beside the means stands the standard
# deviation over the seeds.
from sklearn_sharpbalance.evaluation import evaluate

report = evaluate(
    methods,
    X_test,
    y_test,
    corruptions=["fog"]
    if FAST
    else ["gaussian_noise", "motion_blur", "fog", "pixelate"],
    ood=pictures[~known],
    sharpness={"n_batches": 1 if FAST else 10},
    X_train=X_train,
    y_train=y_train,
    n_bootstrap=50 if FAST else 1000,
)
print(report.to_markdown())

# %%
# Is the difference real?
# -----------------------
# Methods are ranked with the uncertainty of the test samples, drawn in pairs, and of
# the training runs. A difference whose interval holds 0 is no difference.
print(report.rank("corrupted_accuracy"))

# %%
# The table is tidy: with pandas it takes one line to look at a part of it.
frame = report.to_frame()
frame[frame["metric"] == "ood_auroc"].pivot(
    index="detail", columns=["method", "part"], values="mean"
).round(3)

# %%
# Figures
# -------
# A report draws itself as a page of HTML that needs no other file:
# ``report.to_html("report.html")``. Its parts are there for figures of one's own, here
# how accuracy falls with the severity of a corruption.
from sklearn_sharpbalance.plotting import CorruptionDisplay

of_seeds = report.corruption.values()
CorruptionDisplay(
    [np.mean([run.by_severity for run in runs], axis=0) for runs in of_seeds],
    names=report.methods,
).plot()
