"""
A search over rho and flat_ratio as one computation
===================================================

:class:`~sklearn_sharpbalance.model_selection.EnsembleSearchCV` takes the place of
``GridSearchCV``. It trains the members of all candidates and folds in one batched
computation, and a warm-up that several candidates have in common once for each fold.
The scores are the same, up to rounding.
"""

# %%
# Data and search
# ---------------
# Three radii and three fractions of samples, in five folds: 45 fits of three members.
import os

from sklearn.datasets import load_digits

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.model_selection import EnsembleSearchCV
from sklearn_sharpbalance.plotting import SearchDisplay

FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # for the tests

X, y = load_digits(return_X_y=True)
X, y = (X[:200], y[:200]) if FAST else (X, y)
clf = SharpBalanceEnsembleClassifier(max_epochs=4 if FAST else 20, random_state=0)
grid = {"rho": [0.02, 0.1, 0.3], "flat_ratio": [0.2, 0.4, 0.6]}
search = EnsembleSearchCV(clf, grid, cv=2 if FAST else 5).fit(X, y)
print(search.best_params_, f"accuracy {search.best_score_:.4f}")

# %%
# How the fits were trained
# -------------------------
# All of them were stacked. For others, ``plan_`` has the reason.
print(len(search.plan_), "fits;", search.plan_[0])

# %%
# The scores
# ----------
# Each cell has the mean over the folds and its standard error; the frame is the chosen
# candidate. Differences below the standard error do not count.
display = SearchDisplay.from_estimator(search)

# %%
# The refitted ensemble predicts, as in scikit-learn.
print(search.predict(X[:5]), y[:5])
