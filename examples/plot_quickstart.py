"""
First steps: one ensemble, one table, one figure
================================================

Fit an ensemble as any scikit-learn classifier, compare it with two others, and check its
calibration.
"""

# %%
# Data
# ----
# A table with four classes that overlap, so that there are errors to compare. Features
# need not be scaled: members standardise their input.
import os

from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
settings = {"max_epochs": 3 if FAST else None, "random_state": 0}  # None: the default

X, y = make_classification(
    n_samples=1000 if FAST else 4000,
    n_features=20,
    n_informative=10,
    n_redundant=4,
    n_classes=4,
    n_clusters_per_class=3,
    flip_y=0.05,
    random_state=0,
)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.7, stratify=y, random_state=0
)

# %%
# Fit
# ---
# Each member scores all training samples after half of the epochs. From then on it
# applies SAM to those that the *other* members propose, and not to the rest.
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

clf = SharpBalanceEnsembleClassifier(**settings)
clf.fit(X_train, y_train)

# %%
# The settings that the fit used, and the fraction of the samples to which each member
# applies SAM:
from pprint import pprint

pprint(clf.settings_)
print(clf.sam_masks_.mean(axis=1).round(2))

# %%
# Predict
# -------
print(f"accuracy {clf.score(X_test, y_test):.3f}")
print("first probabilities", clf.predict_proba(X_test[:2]).round(2), sep="\n")
print("members, samples, classes:", clf.member_predict_proba(X_test).shape)

# %%
# One table
# ---------
# A deep ensemble and a SAM ensemble of as many epochs.
from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.evaluation import evaluate

deep = DeepEnsembleClassifier(**settings).fit(X_train, y_train)
sam = SharpBalanceEnsembleClassifier(selection="all", **settings).fit(X_train, y_train)
report = evaluate(
    {"deep ensemble": deep, "SAM ensemble": sam, "SharpBalance": clf}, X_test, y_test
)
report

# %%
# The ranking has bootstrap intervals, paired over the test samples. Intervals that contain
# zero show no difference.
report.rank("accuracy").round(3)

# %%
# One figure
# ----------
# A calibrated ensemble is right as often as its confidence says. Both are a little too
# confident here, with nearly the same expected calibration error (ECE).
import matplotlib.pyplot as plt

from sklearn_sharpbalance.plotting import ReliabilityDisplay

figure, axes = plt.subplots(1, 2, figsize=(8.5, 4), layout="constrained")
for ax, (name, ensemble) in zip(
    axes, {"deep ensemble": deep, "SharpBalance": clf}.items()
):
    ReliabilityDisplay.from_estimator(ensemble, X_test, y_test, name=name, ax=ax)

# %%
# One table of 1200 samples and one seed say little about other data. The next example
# shows what SAM costs in diversity.
