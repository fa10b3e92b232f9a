"""Which ensembles of a search train in one computation."""

from types import SimpleNamespace

import numpy as np

from sklearn_sharpbalance.data.batches import BatchSizes
from sklearn_sharpbalance.engine.stacked.ensembles import (
    MOST_ON_CPU,
    EnsembleSegment,
    groups_of_ensembles,
)
from sklearn_sharpbalance.optim import SAM, LookSAM

ROWS = SimpleNamespace(X=np.zeros((10, 5)))


def ensemble(n_sam=1, width=10, n_members=3, data=ROWS, optimizer=SAM):
    made = EnsembleSegment(
        net=SimpleNamespace(device="cpu", optimizer=optimizer),
        members=[None] * n_members,
        data=data,
        segment=SimpleNamespace(sizes=BatchSizes(n_sam, 2 - n_sam, width, width)),
        masks=np.zeros((n_members, 10), dtype=bool),
    )
    vars(made)["member_bytes"] = 100  # in place of the estimate for a network
    return made


def test_ensembles_of_one_key_are_one_group():
    assert groups_of_ensembles([ensemble() for _ in range(3)], list("aba")) == [
        [0, 2],
        [1],
    ]


def test_batches_of_similar_width_are_padded_and_others_are_not():
    ensembles = [ensemble(width=width) for width in (70, 20, 72, 22)]
    assert groups_of_ensembles(ensembles, ["a"] * 4) == [[1, 3], [0, 2]]


def test_ensembles_without_sam_are_apart():
    ensembles = [ensemble(n_sam=n_sam) for n_sam in (0, 1, 2)]
    assert groups_of_ensembles(ensembles, ["a"] * 3) == [[0], [1, 2]]


def test_optimizers_with_a_state_of_their_own_need_the_same_steps():
    ensembles = [ensemble(n_sam=n_sam, optimizer=LookSAM) for n_sam in (1, 2, 1)]
    assert groups_of_ensembles(ensembles, ["a"] * 3) == [[0, 2], [1]]


def test_the_number_of_members_on_a_cpu_is_limited():
    ensembles = [ensemble(n_members=MOST_ON_CPU // 2) for _ in range(5)]
    assert groups_of_ensembles(ensembles, ["a"] * 5) == [[0, 1], [2, 3], [4]]


def test_groups_fit_the_memory():
    own_rows = [ensemble(data=SimpleNamespace(X=np.zeros((10, 5)))) for _ in range(4)]
    same_rows = [ensemble() for _ in range(4)]
    memory = 2 * (300 + 200)  # members, and samples of their own, of two ensembles
    assert groups_of_ensembles(own_rows, ["a"] * 4, memory) == [[0, 1], [2, 3]]
    assert groups_of_ensembles(same_rows, ["a"] * 4, memory) == [[0, 1], [2, 3]]
    assert len(groups_of_ensembles(same_rows, ["a"] * 4, memory + 100)[0]) == 3
