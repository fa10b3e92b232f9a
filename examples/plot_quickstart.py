"""
First steps: one ensemble, one table, one figure
================================================

Fit an ensemble as any scikit-learn classifier, ask what it is worth, and look at the
trade-off that it is about: flatter members are more alike.
"""

# %%
# Data
# ----
# A table with four classes that overlap, so that there are errors to talk about. Nothing
# needs to be scaled: members standardise their input.
import os

from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # the test-suite runs a shorter story
EPOCHS = 3 if FAST else 25

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
# Each member scores all training samples half way, and from then on applies SAM to those
# that the *other* members find sharp. Below the parameters stands what was fitted: the
# share of the samples that each member applies SAM to, losses and time.
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

clf = SharpBalanceEnsembleClassifier(
    max_epochs=EPOCHS, rho=0.2, flat_ratio=0.2, random_state=0
)
clf.fit(X_train, y_train)

# %%
# Predict
# -------
print(f"accuracy {clf.score(X_test, y_test):.3f}")
print("first probabilities", clf.predict_proba(X_test[:2]).round(2), sep="\n")
print("members, samples, classes:", clf.member_predict_proba(X_test).shape)

# %%
# One table
# ---------
# A plain deep ensemble and a SAM ensemble train by the same loop. The report has bootstrap
# intervals over the test samples; differences inside of them are noise.
from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.evaluation import evaluate

deep = DeepEnsembleClassifier(max_epochs=EPOCHS, random_state=0).fit(X_train, y_train)
sam = SharpBalanceEnsembleClassifier(
    selection="all", max_epochs=EPOCHS, rho=0.2, random_state=0
).fit(X_train, y_train)
report = evaluate(
    {"deep ensemble": deep, "SAM ensemble": sam, "SharpBalance": clf}, X_test, y_test
)
report

# %%
# One figure
# ----------
# :func:`~sklearn_sharpbalance.evaluation.tradeoff_curve` trains over ``rho``, here for
# SAM on all samples and for SharpBalance. Every number beside a point is its ``rho``. Along
# each line the members become flatter and agree more often: that is the trade-off. Where
# SharpBalance lies above SAM, it buys the same flatness for less diversity.
from sklearn_sharpbalance.evaluation import tradeoff_curve

curve = tradeoff_curve(
    clf.set_params(warmup="sgd", warmup_epochs=0.2),
    X_train,
    y_train,
    X_test=X_test,
    y_test=y_test,
    rho=[0.1, 0.4] if FAST else [0.05, 0.1, 0.2, 0.4],
    other={"selection": ["all", "sharpbalance"]},
    sharpness={"n_batches": 2 if FAST else 20},
)
display = curve.display(color="ensemble_accuracy")
display.ax_.set_title("Flatter members disagree less")

# %%
# One table of 1200 samples and one seed prove nothing about other data. The slopes, and
# all that was measured:
print({name: round(float(fit.slope), 3) for name, fit in display.fits_.items() if fit})
curve.to_frame()[["rho", "selection", "sharpness", "disagreement_error_ratio"]].round(3)
