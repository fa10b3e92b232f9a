"""Scores of one member: precision, devices and checks."""

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import (
    as_skorch_net,
    inference,
    initial_state,
    member_net,
    score_member,
)
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.sharpness import (
    SHARPNESS_SCORERS,
    FunctionScorer,
    InputCurvatureScorer,
    LossRiseScorer,
)

N = 80
HALF = pytest.mark.parametrize("precision", ["bf16", "fp16"])


@pytest.fixture(scope="module")
def member():
    """Return a net, its state and data with random labels."""
    rng = np.random.default_rng(0)
    data = TrainingData(rng.normal(size=(N, 6)).astype(np.float32), np.arange(N) % 3)
    net = as_skorch_net(MLP, (6,), 3, {"module__hidden": (32, 32)})
    net = member_net(net, 3, sam=SAM, device="cpu")
    state = initial_state(net, 1, seed=0)
    state.module = {
        key: 2 * value if value.is_floating_point() else value
        for key, value in state.module.items()
    }
    return net, state, data


@HALF
def test_half_precision_uses_the_perturbed_weights(member, precision):
    """Cached casts of the weights would hide the perturbation."""
    exact = score_member(*member, LossRiseScorer(rho=0.2))
    rough = score_member(*member, LossRiseScorer(rho=0.2), precision)
    assert np.median(rough) == pytest.approx(np.median(exact), rel=0.1)
    assert spearmanr(exact, rough).statistic > 0.97


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_a_scorer_of_finite_differences_runs_in_float32(member, precision):
    exact = score_member(*member, InputCurvatureScorer())
    np.testing.assert_array_equal(
        score_member(*member, InputCurvatureScorer(), precision), exact
    )
    # In half precision the result differs.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net = inference.restore(*member[:2])
        rough = InputCurvatureScorer()(net, member[2].X, member[2].y)
    assert np.median(np.abs(rough / exact - 1)) > 0.1


@pytest.mark.parametrize("keys", [False, True])
def test_data_too_large_for_the_device_stay_on_the_host(member, monkeypatch, keys):
    """As in training: data larger than half of the free memory."""
    net, state, data = member
    X = {"a": data.X} if keys else data.X
    given = {}

    class OnGpu:
        device, module_ = "cuda:0", torch.nn.Identity()

    def scorer(net, X, y):
        given["X"] = X["a"] if keys else X
        return np.zeros(len(y))

    monkeypatch.setattr(inference, "restore", lambda net, state: OnGpu())
    monkeypatch.setattr(
        inference, "random_stream", MagicMock()
    )  # there is no such device
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (data.X.nbytes, 0))
    score_member(net, state, TrainingData(X, data.y), FunctionScorer(scorer))
    assert given["X"].device.type == "cpu"
    np.testing.assert_array_equal(given["X"], data.X)


@pytest.mark.parametrize("keys", [False, True])
def test_scorer_that_changes_the_data_raises(member, keys):
    """The data belong to the user, and the next member trains on them."""
    net, state, data = member
    X = {"a": data.X.copy()} if keys else data.X.copy()

    def centred(net, X, y):
        X = X["a"] if keys else X
        X -= X.mean(0)
        return X.square().sum(1)

    with pytest.raises(InvalidInputError, match=r"changed X in place.*X\.clone\(\)"):
        score_member(net, state, TrainingData(X, data.y), FunctionScorer(centred))

    def careful(net, X, y):
        return centred(net, {"a": X["a"].clone()} if keys else X.clone(), y)

    score_member(net, state, TrainingData(X, data.y), FunctionScorer(careful))


class RandomInTraining(torch.nn.Sequential):
    """Random and with batch statistics in training mode."""

    def __init__(self, n_features, n_classes):
        super().__init__(
            torch.nn.Linear(n_features, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(8, n_classes),
        )


def plain_loss(net, X, y):
    """Return losses without setting the mode of the module."""
    with torch.no_grad():
        output, target = net.infer(X), torch.as_tensor(y)
        return torch.nn.functional.cross_entropy(output, target, reduction="none")


@pytest.fixture(scope="module")
def random_member(member):
    net = as_skorch_net(RandomInTraining, (6,), 3)
    net = member_net(net, 3, sam=SAM, device="cpu")
    return net, initial_state(net, 0, seed=3), member[2]


def test_a_function_gets_the_net_in_evaluation_mode(random_member):
    scores = score_member(*random_member, FunctionScorer(plain_loss))
    want = score_member(*random_member, SHARPNESS_SCORERS["loss"]())
    np.testing.assert_allclose(scores, want, rtol=1e-5)


def test_draws_of_a_scorer_depend_on_the_member_only(random_member):
    net, state, data = random_member
    scorer = FunctionScorer(lambda net, X, y: torch.rand(len(y)))
    before = torch.get_rng_state()
    scores = score_member(net, state, data, scorer)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        np.testing.assert_array_equal(score_member(net, state, data, scorer), scores)
    other = initial_state(net, 1, seed=4)
    assert (score_member(net, other, data, scorer) != scores).all()


def test_random_scorers_give_the_same_scores_in_every_engine():
    from joblib import parallel_config

    from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

    X, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2

    def noisy(net, X, y):
        return torch.rand(len(y)) + plain_loss(net, X, y)

    def scores(**params):
        clf = SharpBalanceEnsembleClassifier(
            MLP, max_epochs=2, random_state=0, device="cpu", sharpness=noisy, **params
        )
        return clf.fit(X, y).sharpness_

    want = scores(engine="skorch")
    np.testing.assert_allclose(scores(engine="stacked"), want, rtol=1e-4)
    with parallel_config("threading", n_jobs=3):
        np.testing.assert_array_equal(scores(engine="skorch"), want)
