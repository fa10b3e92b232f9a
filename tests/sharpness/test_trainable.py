"""Which weights of a net the scorers treat as trainable."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parametrizations

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.sharpness import LossRiseScorer, last_layer_gradient
from tests import reference
from tests.sharpness.nets import make_data, make_net


def cross_entropy(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def test_loss_rise_without_trainable_weights_raises():
    net, (X, y) = make_net(), make_data()
    net.module_.requires_grad_(False)
    calls = []
    net.module_.register_forward_hook(lambda *args: calls.append(args))
    with pytest.raises(InvalidInputError, match=r"Table has no trainable.*'loss'"):
        LossRiseScorer()(net, X, y)
    assert not calls


@pytest.mark.parametrize(
    "reparametrise",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
    ],
)
def test_last_layer_includes_the_parameters_behind_all_its_tensors(reparametrise):
    net, (X, y) = make_net(), make_data()
    reparametrise(net.module_.fc)
    names = [n for n, _ in net.module_.named_parameters() if n.startswith("fc")]
    expected = reference.per_sample_squared_norms(
        net.module_, cross_entropy, X, y, names
    )
    actual = last_layer_gradient(net, X, y)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-7)
