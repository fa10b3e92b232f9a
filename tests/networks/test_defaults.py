"""The default network for a shape."""

import pytest
import torch

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks import MLP, SmallResNet, default_network


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5,), MLP),
        ((1, 8, 8), SmallResNet),
        ((3, 32, 32), SmallResNet),
        ((3, 64, 48), SmallResNet),
        ((3, 4, 4), MLP),
        ((20, 6), MLP),
        ((2, 3, 4, 5), MLP),
    ],
)
def test_network_fits_the_shape(shape, expected):
    module, kwargs = default_network(shape, 4)
    assert module is expected
    assert module(**kwargs)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_empty_shapes_raise(shape):
    with pytest.raises(InvalidInputError, match="input_shape must contain the sizes"):
        default_network(shape, 4)
