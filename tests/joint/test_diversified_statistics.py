"""Diversified ensembles detect a shortcut that holds in the training data only.

Two moons, and a third feature that gives the class directly and is right for 95 % of
the samples. Members of a deep ensemble all use it. Where it contradicts the moons they
are wrong together, and where it is stronger than ever seen they are sure of it: neither
their confidence nor their diversity gives these samples away. Members that are trained
to disagree differ there.

(Where it contradicts at its usual strength, every ensemble wavers. There the diversity
score of A2D is the better one too, but not that of SED, which sets members apart on
easy samples as well.)
"""

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import make_moons

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.metrics import (
    bma_score,
    disagreement_error_ratio,
    ood_auroc,
    predictive_diversity_score,
    unique_predictions,
)

NET = {
    "n_estimators": 4,
    "max_epochs": 10,
    "batch_size": 64,
    "lr": 0.02,
    "optimizer": torch.optim.AdamW,
    "standardize": False,  # the shortcut is the larger feature
    "estimator__module__hidden": (32,),
    "device": "cpu",
}
METHODS = {
    "deep": DeepEnsembleClassifier(**NET),
    "sed": DiversifiedEnsembleClassifier(**NET),
    "a2d": DiversifiedEnsembleClassifier(loss="a2d", diversity_weight=0.3, **NET),
}


def samples(n, seed, *, right=0.95, strength=1.0):
    """Return moons with a shortcut of given accuracy and strength."""
    X, y = make_moons(n, noise=0.1, random_state=seed)
    rng = np.random.default_rng(seed)
    shortcut = np.where(rng.random(n) < right, 2 * y - 1, 1 - 2 * y)
    shortcut = strength * (shortcut + 0.3 * rng.normal(size=n))
    return np.c_[0.5 * (X - [0.5, 0.25]), shortcut].astype(np.float32), y


def measure(clf, seed):
    """Return the numbers of one fitted ensemble."""
    X, y = samples(1000, seed + 100)
    contradicting, _ = samples(1000, seed + 200, right=0.0)
    foreign, _ = samples(1000, seed + 200, right=0.0, strength=3.0)
    known, other = clf.member_predict_proba(X), clf.member_predict_proba(foreign)
    return {
        "accuracy": clf.score(X, y),
        "DER": disagreement_error_ratio(y, known),
        "unique": unique_predictions(clf.member_predict_proba(contradicting)),
        "PDS": ood_auroc(*map(predictive_diversity_score, (known, other))),
        "BMA": ood_auroc(-bma_score(known), -bma_score(other)),
    }


def means(name):
    """Return the mean numbers of a method for two seeds."""
    rows = []
    for seed in range(2):
        X, y = samples(300, seed)
        unlabeled, _ = samples(300, seed + 300, right=0.0)
        extra = {"X_unlabeled": unlabeled} if name == "a2d" else {}
        clf = clone(METHODS[name]).set_params(random_state=seed).fit(X, y, **extra)
        rows.append(measure(clf, seed))
    return {key: np.mean([row[key] for row in rows]) for key in rows[0]}


def test_diversity_and_detection_after_a_short_training():
    """Without a test of significance."""
    deep = means("deep")
    for other in (means("sed"), means("a2d")):
        assert abs(other["accuracy"] - deep["accuracy"]) < 0.03
        for name in ("DER", "unique", "PDS"):
            assert other[name] > deep[name]
        assert other["PDS"] > max(0.6, other["BMA"])
