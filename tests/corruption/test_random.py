import numpy as np
import pytest

from sklearn_sharpbalance.corruption import ImageRng


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal((3, 2)),
        lambda rng: rng.uniform((5,), low=-2, high=3),
        lambda rng: rng.integers(-3, 4, (7,)),
        lambda rng: rng.poisson(np.full((len(rng), 6), 20.0)),
        lambda rng: rng.uniform(),
    ],
)
def test_rows_depend_on_their_index_only(draw):
    whole, part = ImageRng(5, np.arange(10)), ImageRng(5, [7, 2])
    for _ in range(2):  # the second draw is different
        a, b = draw(whole), draw(part)
        np.testing.assert_array_equal(a[[7, 2]], b)
    assert len(np.unique(a.reshape(10, -1), axis=0)) > 5


def test_draws_are_numpys_philox_with_the_documented_key():
    bits = np.random.Philox(key=[9, 4], counter=[0, 0, 0, 1])
    expected = np.random.Generator(bits).standard_normal(11, dtype=np.float32)
    np.testing.assert_array_equal(ImageRng(9, [4]).normal((11,))[0], expected)
