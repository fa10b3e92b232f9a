"""Scores of one member: at any precision, wherever the data lie, and checked."""

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.members import (
    as_skorch_net,
    initial_state,
    member_net,
    score_member,
    scoring,
)
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.sharpness import (
    SHARPNESS_SCORERS,
    FunctionScorer,
    InputCurvatureScorer,
    LossRiseScorer,
    SharpnessScorer,
)

N = 80
HALF = pytest.mark.parametrize("precision", ["bf16", "fp16"])


@pytest.fixture(scope="module")
def member():
    """A net, its state and its data: random labels, so that the loss is steep."""
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
def test_half_precision_sees_the_perturbed_weights(member, precision):
    """Cast weights that were kept from before would hide the perturbation."""
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
    # In half precision it is another number, which is why.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net = scoring.restore(*member[:2])
        rough = InputCurvatureScorer()(net, member[2].X, member[2].y)
    assert np.median(np.abs(rough / exact - 1)) > 0.1


@pytest.mark.parametrize("needs", [False, True])
def test_a_scorer_of_the_users_own_says_what_it_needs(member, needs):
    class Mine(SharpnessScorer):
        needs_float32 = needs

        def score_samples(self, net, X, y):
            self.dtype = net.infer(X).dtype
            return np.zeros(len(y))

    scorer = Mine()
    score_member(*member, scorer, "bf16")
    assert scorer.dtype == (torch.float32 if needs else torch.bfloat16)
    assert not SharpnessScorer.needs_float32


@pytest.mark.parametrize("keys", [False, True])
def test_data_too_large_for_the_device_stay_on_the_host(member, monkeypatch, keys):
    """As in training: more than half of the memory that is free."""
    net, state, data = member
    X = {"a": data.X} if keys else data.X
    given = {}

    class OnGpu:
        device, module_ = "cuda:0", torch.nn.Identity()

    def scorer(net, X, y):
        given["X"] = X["a"] if keys else X
        return np.zeros(len(y))

    monkeypatch.setattr(scoring, "restore", lambda net, state: OnGpu())
    monkeypatch.setattr(
        scoring, "random_stream", MagicMock()
    )  # there is no such device
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (data.X.nbytes, 0))
    score_member(net, state, TrainingData(X, data.y), FunctionScorer(scorer))
    assert given["X"].device.type == "cpu"
    np.testing.assert_array_equal(given["X"], data.X)


@pytest.mark.parametrize("name", ["fisher_trace", "loss"])
def test_a_member_that_diverged_is_called_so(member, name):
    net, state, data = member
    broken = {key: value * torch.nan for key, value in state.module.items()}
    state = type(state)(1, 0, broken)
    with pytest.raises(DivergenceError, match="80 scores that are not finite") as error:
        score_member(net, state, data, SHARPNESS_SCORERS[name]())
    assert error.value.__notes__ == ["Member 1 was being scored."]


def test_scores_of_the_wrong_shape_are_the_scorers_fault(member):
    scorer = FunctionScorer(lambda net, X, y: np.zeros((len(y), 2)))
    with pytest.raises(InvalidInputError, match=r"shape \(80,\)\. Got shape \(80, 2\)"):
        score_member(*member, scorer)


@pytest.mark.parametrize("keys", [False, True])
def test_a_scorer_that_changes_the_data_is_told_so(member, keys):
    """They are those of the user, and what the next member trains on."""
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


class Restless(torch.nn.Sequential):
    """Behaves otherwise while it trains, and draws then."""

    def __init__(self, n_features, n_classes):
        super().__init__(
            torch.nn.Linear(n_features, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(8, n_classes),
        )


def plain_loss(net, X, y):
    """What a user writes who does not think of modes."""
    with torch.no_grad():
        output, target = net.infer(X), torch.as_tensor(y)
        return torch.nn.functional.cross_entropy(output, target, reduction="none")


@pytest.fixture(scope="module")
def restless(member):
    net = as_skorch_net(Restless, (6,), 3)
    net = member_net(net, 3, sam=SAM, device="cpu")
    return net, initial_state(net, 0, seed=3), member[2]


def test_a_function_gets_the_net_in_evaluation_mode(restless):
    scores = score_member(*restless, FunctionScorer(plain_loss))
    want = score_member(*restless, SHARPNESS_SCORERS["loss"]())
    np.testing.assert_allclose(scores, want, rtol=1e-5)


def test_what_a_scorer_draws_depends_on_the_member_alone(restless):
    net, state, data = restless
    scorer = FunctionScorer(lambda net, X, y: torch.rand(len(y)))
    before = torch.get_rng_state()
    scores = score_member(net, state, data, scorer)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        np.testing.assert_array_equal(score_member(net, state, data, scorer), scores)
    other = initial_state(net, 1, seed=4)
    assert (score_member(net, other, data, scorer) != scores).all()


def test_scorers_that_draw_are_the_same_in_every_engine():
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
    with parallel_config(backend="threading"):
        np.testing.assert_array_equal(scores(engine="skorch", n_jobs=3), want)
