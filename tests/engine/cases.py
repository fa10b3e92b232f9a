"""Two members and segments of their training, for the tests of engines."""

import random
from itertools import pairwise

import numpy as np
import torch

from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.members import Segment, initial_state
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.members.session import NO_REPORT


def start(net):
    """Return the states of two members before training."""
    return [initial_state(net, i, seed) for i, seed in enumerate((11, 12))]


def generators():
    """Return the states of the global generators of torch, NumPy and Python."""
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
    return torch.get_rng_state().tolist(), legacy, random.getstate()


def segment(masks, start, stop, n_epochs, batch_size=16, sizes=None, **settings):
    """Return a segment of a phase of ``n_epochs``."""
    return Segment(
        name="balanced",
        start=start,
        stop=stop,
        n_epochs=n_epochs,
        sizes=sizes or batch_sizes(masks, batch_size=batch_size),
        rho=(0.05, 0.2),
        lr_schedule=cosine,
        **settings,
    )


def train_segments(run, edges, masks, report=NO_REPORT, n_epochs=6, **settings):
    """Train segments between ``edges`` and return the states after the last one."""
    for first, stop in pairwise(edges):
        phase = segment(masks, first, stop, n_epochs, **settings)
        states = run.train(phase, masks, report)
    return states
