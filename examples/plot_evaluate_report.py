"""
One report about an ensemble
============================

:func:`~sklearn_sharpbalance.evaluation.evaluate` measures accuracy, calibration,
diversity, sharpness and robustness of ensembles and baselines in one call: here for
images of digits, corrupted digits, and digits of classes that are not in the training
set.
"""

# %%
# Images
# ------
# Three fifths of the images of the digits 0 to 7 are for training. The eights and nines
# are foreign samples: ensembles should be less confident about them.
import os

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests

digits = load_digits()
images = (digits.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8)
known = digits.target < 8
X_train, X_test, y_train, y_test = train_test_split(
    images[known],
    digits.target[known],
    train_size=0.6,
    stratify=digits.target[known],
    random_state=0,
)

# %%
# Two methods with two seeds each, and a baseline
# -----------------------------------------------
# Any classifier with ``predict_proba`` can be compared with the ensembles. The random
# forest needs a table, so a pipeline flattens the images. SharpBalance makes two
# gradient passes for many samples and costs nearly twice as much here as the deep
# ensemble; :doc:`plot_compare_methods_digits` gives all methods the same number of passes.
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
        SharpBalanceEnsembleClassifier(**network, sam="sam", rho=0.2, random_state=seed)
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
# training samples. Values are means over the seeds.
from sklearn_sharpbalance.evaluation import evaluate

report = evaluate(
    methods,
    X_test,
    y_test,
    corruptions=["fog"]
    if FAST
    else ["gaussian_noise", "motion_blur", "fog", "pixelate"],
    ood=images[~known],
    sharpness={"n_batches": 1 if FAST else 10},
    X_train=X_train,
    y_train=y_train,
    n_bootstrap=50 if FAST else 1000,
)
report.to_frame(wide=True).round(3)

# %%
# Are the differences larger than chance?
# ---------------------------------------
# The bootstrap of the ranking draws test samples, the same for all methods, and seeds. A
# difference whose interval contains 0 is not significant.
report.rank("corrupted_accuracy").round(3)

# %%
# The table has a row for each value, so pandas selects a part of it in one line:
frame = report.to_frame()
frame[frame["metric"] == "ood_auroc"].pivot(
    index="detail", columns=["method", "part"], values="mean"
).round(3)

# %%
# Figures
# -------
# ``plot`` draws one metric of all methods, members hollow and ensembles filled. Attributes
# of the report have the values for other figures, here accuracy by the severity of the
# corruption.
report.plot("corrupted_accuracy")
import pandas as pd

accuracy = {
    name: pd.concat(runs)["ensemble"].groupby("severity").mean()
    for name, runs in report.corruption.items()
}
pd.DataFrame(accuracy).plot(marker="o", ylabel="Accuracy")
