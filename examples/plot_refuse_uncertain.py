"""
Refuse the least certain predictions
====================================

An ensemble tells how uncertain it is. If it refuses the samples of the highest
uncertainty and leaves them to a person, the accuracy on the others rises. The curve of
this accuracy over the fraction of samples that are answered is the accuracy-coverage
curve.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.corruption import corrupt_table

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.5, random_state=0, stratify=y
)
clf = SharpBalanceEnsembleClassifier(
    max_epochs=5 if FAST else None, validation_fraction=0.2, random_state=0
)
clf.fit(X_train, y_train)

# %%
# The test samples get noise, so that some of them are hard.

noisy, _ = corrupt_table(
    X_test, None, "feature_noise", 4, reference=X_train, random_state=0
)
right = clf.predict(noisy) == y_test
uncertainty = clf.predict_uncertainty(noisy)
uncertainty.assign(right=right).groupby("right").mean().round(3)

# %%
# Accuracy on the samples that are answered, if the most uncertain ones are refused. The
# best possible order refuses all errors first.


def accuracy_by_coverage(score):
    """Return the accuracy on the n samples of the lowest score, for each n."""
    return np.cumsum(right[np.argsort(score, kind="stable")]) / np.arange(
        1, len(right) + 1
    )


coverage = np.arange(1, len(right) + 1) / len(right)
fig, ax = plt.subplots()
for name in ("total", "epistemic"):
    ax.plot(coverage, accuracy_by_coverage(uncertainty[name]), label=name)
ax.plot(coverage, accuracy_by_coverage(~right), color="0.6", label="best possible")
ax.axvline(0.9, color="0.8", linestyle=":")
ax.set(xlabel="fraction of samples answered", ylabel="accuracy on them", xlim=(0.2, 1))
ax.legend(title="refused by")
plt.show()

# %%
# Refusing the tenth that is least certain:

answered = uncertainty["total"] <= uncertainty["total"].quantile(0.9)
print(f"all samples: {right.mean():.3f}, answered ones: {right[answered].mean():.3f}")

# %%
# Sets of classes instead of refusals. On clean samples they cover the true class about as
# often as promised. On noisy ones they cover it less often, since these are unlike the
# validation samples.

for name, samples in (("clean", X_test), ("noisy", noisy)):
    sets = clf.predict_set(samples, confidence=0.9)
    covered = sets[np.arange(len(y_test)), y_test].mean()
    print(f"{name}: {covered:.3f} covered, {sets.sum(axis=1).mean():.2f} classes a set")
