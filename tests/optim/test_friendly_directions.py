"""Directions of Friendly SAM here and in the released code, for sigma = 1."""

import numpy as np
import torch

from sklearn_sharpbalance.optim import FriendlySAM

DECAY = 0.6
GRADIENTS = np.random.default_rng(0).normal(size=(12, 5))


def our_directions():
    """Unit perturbations of FriendlySAM for a series of gradients."""
    weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = FriendlySAM([weight], rho=1.0, lmbda=DECAY, lr=0.0)
    found = []
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient)
        with optimizer.perturbed():
            found.append(weight.detach().numpy().copy())
    return found


def released_directions(average):
    """Unit perturbations along the gradient minus the average before it."""
    found = []
    for gradient in GRADIENTS:
        noise = gradient - average
        found.append(noise / max(np.linalg.norm(noise), 1e-12))
        average = DECAY * average + (1 - DECAY) * gradient
    return found


def test_directions_are_the_same_for_equal_starts():
    np.testing.assert_allclose(our_directions(), released_directions(np.zeros(5)))


def test_other_starts_are_forgotten():
    others = released_directions(GRADIENTS[0])
    gaps = np.linalg.norm(np.subtract(our_directions(), others), axis=1)
    assert gaps[1] > 0.1
    assert gaps[-1] < 2 * DECAY ** (len(gaps) - 1) * np.linalg.norm(GRADIENTS[0])
