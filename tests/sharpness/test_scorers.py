"""Compare each scorer with a naive loop in float64, and test its edge cases."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parametrizations

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.sharpness import (
    FisherTraceScorer,
    InputCurvatureScorer,
    LastLayerGradientScorer,
    LossRiseScorer,
    LossScorer,
    fisher_trace,
    input_curvature,
    last_layer_gradient,
    loss_rise,
    per_sample_loss,
)
from tests import reference
from tests.sharpness.nets import Images, Named, Table, make_data, make_net


def cross_entropy(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def problem(kind="table"):
    module = {"table": Table, "images": Images, "dict": Named}[kind]
    return make_net(module), *make_data(kind)


def assert_close(actual, expected, rtol=1e-4, atol=1e-7):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", ["table", "images", "dict"])
@pytest.mark.parametrize("method", ["auto", "layer_rules", "vmap", "loop"])
def test_fisher_trace(kind, method):
    if (kind, method) == ("dict", "layer_rules"):
        return  # raises: an embedding has no rule
    net, X, y = problem(kind)
    expected = reference.per_sample_squared_norms(net.module_, cross_entropy, X, y)
    assert_close(FisherTraceScorer(method=method)(net, X, y), expected)
    assert_close(fisher_trace(net, X, y, method=method), expected)


def test_fisher_trace_of_softmax_regression():
    net = make_net(nn.Linear, module__in_features=6, module__out_features=3)
    X, y = make_data()
    with torch.no_grad():
        residual = net.module_(X).softmax(1) - F.one_hot(y, 3)
    expected = residual.square().sum(1) * (X.square().sum(1) + 1)
    for scorer in (FisherTraceScorer(), LastLayerGradientScorer()):
        assert_close(scorer(net, X, y), expected)


@pytest.mark.parametrize("kind", ["table", "dict"])
def test_last_layer_is_the_last_to_be_called(kind):
    net, X, y = problem(kind)
    expected = reference.per_sample_squared_norms(
        net.module_, cross_entropy, X, y, names=["fc.weight", "fc.bias"]
    )
    assert_close(LastLayerGradientScorer()(net, X, y), expected)
    assert_close(last_layer_gradient(net, X, y, method="loop"), expected)


def test_last_layer_skips_frozen_layers():
    net, X, y = problem()
    net.module_.fc.requires_grad_(False)
    expected = reference.per_sample_squared_norms(net.module_, cross_entropy, X, y)
    assert_close(LastLayerGradientScorer()(net, X, y), expected)
    net.module_.requires_grad_(False)
    with pytest.raises(InvalidInputError, match="Table calls no layer with trainable"):
        LastLayerGradientScorer()(net, X, y)


@pytest.mark.parametrize("kind", ["table", "images", "dict"])
def test_loss(kind):
    net, X, y = problem(kind)
    expected = reference.per_sample_losses(net.module_, cross_entropy, X, y)
    assert_close(LossScorer()(net, X, y), expected)
    losses = per_sample_loss(net, X, y, chunk_size=4)
    assert not losses.requires_grad
    assert_close(losses, expected)


@pytest.mark.parametrize("rho", [0.05, 1.0])
@pytest.mark.parametrize("kind", ["table", "images", "dict"])
def test_loss_rise(kind, rho):
    net, X, y = problem(kind)
    expected = reference.loss_rise(net.module_, cross_entropy, X, y, rho)
    assert expected.mean() > 0
    assert_close(LossRiseScorer(rho=rho)(net, X, y), expected, rtol=1e-3, atol=1e-6)
    actual = loss_rise(net, X, y, rho=rho, chunk_size=3)
    assert_close(actual, expected, rtol=1e-3, atol=1e-6)


def test_enclosing_autocast_uses_the_current_weights():
    net, X, y = problem()

    def scores(cached):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            first = loss_rise(net, X, y, rho=1.0), per_sample_loss(net, X, y)
            with torch.no_grad():
                net.module_.fc.weight.neg_()
            return *first, per_sample_loss(net, X, y), fisher_trace(net, X, y)

    start = net.module_.fc.weight.detach().clone()
    kept = scores(cached=True)
    net.module_.fc.weight.data.copy_(start)
    for mine, plain in zip(kept, scores(cached=False), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)
    assert kept[0].mean() > 0.1
    assert not torch.allclose(kept[1], kept[2])


def test_loss_rise_without_a_perturbation():
    net, X, y = problem()
    assert not LossRiseScorer(rho=0)(net, X, y).any()
    with pytest.raises(InvalidInputError, match="rho must be a float in the range"):
        LossRiseScorer(rho=-1)(net, X, y)


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (FisherTraceScorer(method="fast"), "Unknown method 'fast'"),
        (LastLayerGradientScorer(method=None), "Unknown method None"),
        (LossRiseScorer(rho=np.nan), "rho must be a float in .* got nan"),
        (InputCurvatureScorer(step=0), "step must be a float in .* got 0"),
        (InputCurvatureScorer(step=np.inf), "step must be a float in .* got inf"),
        (InputCurvatureScorer(n_directions=0), "n_directions must be an int"),
        (InputCurvatureScorer(random_state=-1), "from 0 to .* got -1"),
        (InputCurvatureScorer(random_state="a"), "numpy RandomState, got 'a'"),
    ],
)
def test_check_and_call_raise_for_invalid_parameters(scorer, message):
    with pytest.raises(InvalidInputError, match=message):
        scorer.check()
    with pytest.raises(InvalidInputError, match=message):
        scorer(*problem())


def drawn_signs(n, shape, seed=0):
    random_state = np.random.RandomState(seed)
    return [
        torch.tensor(random_state.randint(0, 2, size=shape) * 2.0 - 1.0)
        for _ in range(n)
    ]


def test_input_curvature_along_random_signs():
    net, X, y = problem()
    signs = drawn_signs(4, (6,), seed=5)
    expected = reference.input_curvature(
        net.module_, cross_entropy, X, y, 0.01, lambda gradient: signs
    )
    scorer = InputCurvatureScorer(step=0.01, n_directions=4, random_state=5)
    assert_close(scorer(net, X, y), expected, rtol=1e-2, atol=1e-6)
    state = np.random.RandomState(5)
    scorer.set_params(random_state=state)
    assert_close(scorer(net, X, y), expected, rtol=1e-2, atol=1e-6)


def test_input_curvature_is_the_squared_hessian():
    """In softmax regression the input's Hessian is W' (diag p - p p') W."""
    net = make_net(nn.Linear, module__in_features=6, module__out_features=3)
    net.module_.double()
    X, y = make_data()
    X = X.double()
    with torch.no_grad():
        p, w = net.module_(X).softmax(1), net.module_.weight
        H = w.T @ (torch.diag_embed(p) - p[:, :, None] * p[:, None]) @ w  # (N, 6, 6)
    expected = H.square().sum((1, 2))
    actual = input_curvature(net, X, y, step=1e-5, n_directions=1000)
    assert_close(actual, expected, rtol=0.1)


def test_input_curvature_of_images_is_relative_to_their_range():
    net, X, y = problem("images")
    signs = drawn_signs(10, (3, 5, 5))

    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net.module_

        def forward(self, x):
            return self.inner(x * 255)

    expected = reference.input_curvature(
        Unit(), cross_entropy, X.double() / 255, y, 1e-3, lambda gradient: signs
    )
    assert_close(InputCurvatureScorer()(net, X, y), expected, rtol=2e-2)


def test_input_curvature_does_not_move_indices():
    net, X, y = problem("dict")

    class Numbers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net.module_

        def forward(self, x):
            return self.inner(numbers=x, words=X["words"][row : row + 1])

    signs = drawn_signs(10, (6,))
    expected = []
    for row in range(len(y)):
        x, target = X["numbers"][row : row + 1], y[row : row + 1]
        expected += reference.input_curvature(
            Numbers(), cross_entropy, x, target, 0.01, lambda gradient: signs
        )
    actual = InputCurvatureScorer(step=0.01)(net, X, y)
    assert_close(actual, torch.stack(expected), rtol=1e-2, atol=1e-6)


def test_input_curvature_raises_for_integer_inputs():
    net = make_net(nn.EmbeddingBag, module__num_embeddings=7, module__embedding_dim=3)
    X = torch.randint(0, 7, (4, 2))
    with pytest.raises(InvalidInputError, match="needs floating-point inputs or uint8"):
        InputCurvatureScorer()(net, X, torch.zeros(4, dtype=torch.long))


def test_input_curvature_without_a_seed_is_random():
    net, X, y = problem()
    scorer = InputCurvatureScorer(n_directions=1, random_state=None)
    # Of 64 directions, two are equal up to their sign in one of 32 pairs.
    first, *others = (scorer(net, X, y) for _ in range(8))
    assert not all(np.allclose(first, other) for other in others)


def test_weight_and_input_curvature_rank_samples_similarly():
    """Reproduce figure 14 of the paper on a network trained on digits."""
    X, y = load_digits(return_X_y=True)
    X = (X[:600] / 16).astype(np.float32)
    y = y[:600]
    net = make_net(
        nn.Linear,
        module__in_features=64,
        module__out_features=10,
        max_epochs=60,
        lr=0.5,
        train_split=None,
        verbose=0,
    )
    net.partial_fit(X, y)
    in_weights = FisherTraceScorer()(net, X, y)
    in_input = InputCurvatureScorer()(net, X, y)
    assert spearmanr(in_weights, in_input).statistic > 0.8


def test_loss_rise_without_trainable_weights_raises():
    net, (X, y) = make_net(), make_data()
    net.module_.requires_grad_(False)
    calls = []
    net.module_.register_forward_hook(lambda *args: calls.append(args))
    with pytest.raises(InvalidInputError, match=r"Table has no trainable.*'loss'"):
        LossRiseScorer()(net, X, y)
    assert not calls


@pytest.mark.parametrize(
    "reparametrise", [parametrizations.weight_norm, parametrizations.spectral_norm]
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
