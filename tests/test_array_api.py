"""With ``SCIPY_ARRAY_API=1``: scikit-learn's array checks, and tensors under dispatch.

The variable must be set before SciPy is imported, so the test runs in a new
process; ``SCIPY_ARRAY_API=1 pytest tests/test_common.py`` runs the other checks.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
import torch
from sklearn import config_context
from sklearn.utils.estimator_checks import estimator_checks_generator

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance

SMALL = {
    "n_estimators": 2,
    "max_epochs": 2,
    "batch_size": 30,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (8,),
}

names = []
for kind in (DeepEnsembleClassifier, SharpBalance):
    for estimator, check in estimator_checks_generator(kind(**SMALL)):
        if check.func.__name__.startswith("check_array_api"):
            check(estimator)  # SkipTest, if the variable had not been seen
            names.append(check.func.__name__)
assert len(names) == 2, names

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
weight = rng.uniform(0.5, 2, 60)
want = SharpBalance(class_weight="balanced", **SMALL).fit(X, y, sample_weight=weight)
with config_context(array_api_dispatch=True):
    given = [torch.tensor(values) for values in (X, y, weight)]
    clf = SharpBalance(class_weight="balanced", **SMALL)
    clf.fit(*given[:2], sample_weight=given[2])
    probas = clf.predict_proba(given[0])
    assert clf.score(*given[:2]) == want.score(X, y)
assert isinstance(probas, np.ndarray)
np.testing.assert_array_equal(probas, want.predict_proba(X))
print("all good")
"""


@pytest.mark.slow
def test_array_api_checks_and_tensors_under_dispatch():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )
    assert done.stdout.strip().endswith("all good"), done.stderr
