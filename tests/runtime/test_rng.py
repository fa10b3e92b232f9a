"""Random streams depend on their seed and leave the global generators unchanged."""

import random

import numpy as np
import pytest
import torch

from sklearn_sharpbalance.runtime.rng import (
    AFTER_TRAINING,
    BEFORE_TRAINING,
    epoch_rng,
    epoch_seed,
    random_stream,
    seed_generators,
)
from tests.cases import global_generators


def draw_everywhere():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002


def test_the_global_generators_are_restored_also_after_an_error():
    def fail():
        draw_everywhere()
        raise ZeroDivisionError

    before = global_generators()
    with random_stream():
        seed_generators(np.int64(4))
        draw_everywhere()
    assert global_generators() == before
    with pytest.raises(ZeroDivisionError), random_stream(seed=3):
        fail()
    assert global_generators() == before


def test_a_stream_without_a_seed_draws_on():
    with random_stream(seed=3):
        before = global_generators()
        with random_stream():
            assert global_generators() == before


@pytest.mark.parametrize(
    "random_numbers",
    [
        lambda: torch.rand(3).tolist(),
        lambda: np.random.rand(3).tolist(),  # noqa: NPY002
        lambda: [random.random() for _ in range(3)],
    ],
    ids=["torch", "numpy", "python"],
)
def test_draws_depend_on_seed_and_epoch(random_numbers):
    def draw(seed, epoch):
        with random_stream(seed=epoch_seed(seed, epoch)):
            return tuple(random_numbers())

    assert draw(1, 2) == draw(1, 2)
    pairs = [(1, 2), (2, 1), (1, 3), (1, BEFORE_TRAINING), (1, AFTER_TRAINING)]
    assert len({draw(*pair) for pair in pairs}) == len(pairs)


def test_each_epoch_has_its_own_generator():
    first, again = epoch_rng(5, 1).random(4), epoch_rng(5, 1).random(4)
    np.testing.assert_array_equal(first, again)
    assert (first != epoch_rng(5, 2).random(4)).all()
    assert (first != epoch_rng(1, 5).random(4)).all()
