"""Predictions of a made-up ensemble, the rule to combine them, and a small network."""

import numpy as np

rng = np.random.default_rng(0)
PROBAS = rng.dirichlet(np.ones(4) * 0.5, size=(5, 60))  # (M, N, C)
Y = rng.integers(4, size=60)
SMALL = {
    "estimator__module__hidden": (16,),
    "max_epochs": 4,
    "random_state": 0,
    "device": "cpu",
}


def geometric_mean(probas):
    """Return the softmax of the mean logit."""
    product = np.exp(sum(np.log(p) for p in probas) / len(probas))
    return product / product.sum(1, keepdims=True)
