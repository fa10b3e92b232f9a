"""Common tests, which run over every scorer of the registry."""

import random

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils import check_random_state

from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.sharpness import (
    SHARPNESS_SCORERS,
    FisherTraceScorer,
    FunctionScorer,
    SharpnessScorer,
)
from tests.sharpness.nets import Images, Named, make_data, make_net

MAY_BE_NEGATIVE = {"loss_rise"}
KINDS = {"table": {}, "images": {"module": Images}, "dict": {"module": Named}}

each_scorer = pytest.mark.parametrize("name", SHARPNESS_SCORERS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def problem(kind="table"):
    return make_net(**KINDS[kind]), *make_data(kind)


@each_kind
@each_scorer
def test_scores_are_finite_and_one_per_sample(name, kind):
    net, X, y = problem(kind)
    scores = SHARPNESS_SCORERS[name]()(net, X, y)
    assert isinstance(scores, np.ndarray)
    assert scores.shape == (11,)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    assert name in MAY_BE_NEGATIVE or (scores >= 0).all()
    assert len(np.unique(scores)) > 5


@each_kind
@each_scorer
def test_scores_do_not_depend_on_chunks_and_order(name, kind):
    net, X, y = problem(kind)
    expected = SHARPNESS_SCORERS[name]()(net, X, y)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    X = {k: v[order] for k, v in X.items()} if kind == "dict" else X[order]
    for chunk_size in (1, 3, 100):
        scorer = SHARPNESS_SCORERS[name]().set_params(chunk_size=chunk_size)
        actual = scorer(net, X, y[order])
        np.testing.assert_allclose(actual, expected[order], rtol=2e-3, atol=1e-6)


@each_kind
@each_scorer
def test_net_is_not_changed(name, kind):
    net, X, y = problem(kind)
    module = net.module_
    next(module.children()).eval()  # neither eval() nor train() would restore this
    frozen = next(module.parameters()).requires_grad_(False)
    gradients = [torch.ones_like(p) for p in module.parameters()]
    for p, g in zip(module.parameters(), gradients):
        p.grad = g
    modes = [m.training for m in module.modules()]
    weights = {k: v.clone() for k, v in module.state_dict().items()}
    inputs = {k: v.clone() for k, v in X.items()} if kind == "dict" else X.clone()

    SHARPNESS_SCORERS[name]()(net, X, y)

    assert [m.training for m in module.modules()] == modes
    assert [p.requires_grad for p in module.parameters()] == [
        p is not frozen for p in module.parameters()
    ]
    for p, g in zip(module.parameters(), gradients):
        assert p.grad is g
        assert torch.equal(g, torch.ones_like(g))
    assert all(torch.equal(v, weights[k]) for k, v in module.state_dict().items())
    assert net.criterion_.reduction == "mean"
    assert not any(m._forward_hooks for m in module.modules())
    torch.testing.assert_close(X, inputs, rtol=0, atol=0)


@each_scorer
def test_global_random_state_is_not_used(name):
    net, X, y = problem()
    legacy = check_random_state(None)  # NumPy's global one
    before = torch.get_rng_state(), legacy.get_state()[1].copy(), random.getstate()
    SHARPNESS_SCORERS[name]()(net, X, y)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(legacy.get_state()[1], before[1])
    assert random.getstate() == before[2]


@each_scorer
def test_scores_scale_with_the_loss_by_their_degree(name):
    """Class weights of c multiply every loss by c."""
    net, X, y = problem()
    scorer = SHARPNESS_SCORERS[name]()
    plain = scorer(net, X, y)
    net.criterion_.weight = torch.full((3,), 4.0)
    np.testing.assert_allclose(
        scorer(net, X, y), 4.0**scorer.degree * plain, rtol=2e-3, atol=1e-6
    )


@each_scorer
def test_estimator_conventions(name):
    scorer = SHARPNESS_SCORERS.resolve(name)
    assert isinstance(scorer, SharpnessScorer)
    copy = clone(scorer.set_params(chunk_size=7))
    assert copy.get_params() == scorer.get_params()
    assert copy.chunk_size == 7
    assert repr(scorer) == f"{type(scorer).__name__}(chunk_size=7)"
    assert type(scorer).__name__.endswith("Scorer")
    assert scorer.degree in (1, 2)
    scorer.set_params(chunk_size=0)
    for call in (scorer.check, lambda: scorer(*problem())):
        with pytest.raises(InvalidInputError, match="chunk_size must be"):
            call()


def test_the_registry_clones_objects_and_wraps_functions():
    scorer = FisherTraceScorer(chunk_size=3)
    copy = SHARPNESS_SCORERS.resolve(scorer)
    assert copy is not scorer
    assert copy.chunk_size == 3
    wrapped = SHARPNESS_SCORERS.resolve(lambda net, X, y: X.sum(1))
    X = torch.ones(2, 3, requires_grad=True)
    assert wrapped(None, X, torch.zeros(2)).tolist() == [3, 3]
    assert clone(FunctionScorer(len, degree=2)).degree == 2
    with pytest.raises(InvalidInputError, match=r"'fischer'.*'fisher_trace'"):
        SHARPNESS_SCORERS.resolve("fischer")


@pytest.mark.gpu
@each_kind
@each_scorer
def test_cuda_equals_cpu(name, kind):
    net, X, y = problem(kind)
    expected = SHARPNESS_SCORERS[name]()(net, X, y)
    net = make_net(**KINDS[kind], device="cuda")
    net.module_.load_state_dict(make_net(**KINDS[kind]).module_.state_dict())
    actual = SHARPNESS_SCORERS[name]()(net, X, y.numpy())
    np.testing.assert_allclose(actual, expected, rtol=2e-2, atol=1e-4)


def test_scores_of_a_wrong_shape_raise():
    scorer = FunctionScorer(lambda net, X, y: X)
    with pytest.raises(InvalidInputError, match=r"shape \(2,\)\. Got shape \(2, 3\)"):
        scorer(None, np.ones((2, 3)), np.ones(2))


@pytest.mark.parametrize(
    "scores",
    [
        ["sharp", "flat"],
        [[1.0], [1.0, 2.0]],
        [torch.ones((), requires_grad=True)] * 2,
        {"a": 1.0, "b": 2.0},
    ],
    ids=["words", "ragged", "gradients", "dict"],
)
def test_scores_that_are_not_numbers_raise(scores):
    scorer = FunctionScorer(lambda net, X, y: scores)
    with pytest.raises(
        InvalidInputError, match=r"one number per sample.*Got a (list|dict): "
    ):
        scorer(None, np.ones((2, 3)), np.ones(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_scores_may_be_tensors_of_any_dtype(dtype):
    scorer = FunctionScorer(lambda net, X, y: torch.tensor([1, 2], dtype=dtype))
    assert scorer(None, np.ones((2, 3)), np.ones(2)).tolist() == [1, 2]


def test_scores_that_are_not_finite_raise():
    scorer = FunctionScorer(lambda net, X, y: [0, np.nan, np.inf])
    with pytest.raises(
        DivergenceError,
        match=r"2 scores that are not finite.*sample 1: nan.*lower `lr`",
    ):
        scorer(None, np.ones((3, 1)), np.ones(3))
