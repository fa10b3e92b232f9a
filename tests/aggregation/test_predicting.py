"""Predictions of an ensemble agree with each other and with its members."""

import copy
import warnings

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.exceptions import NotFittedError
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import DiversifiedEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data import training_data as member_data
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from tests.cases import N_SAMPLES, SMALL, table

LABELS = np.array(["no", "perhaps", "yes"])


@pytest.fixture(scope="module")
def fitted():
    X, y = table()
    return SharpBalance(**{**SMALL, "n_estimators": 3}).fit(X, LABELS[y])


def test_predictions_agree_with_each_other(fitted):
    X, _ = table(seed=5)
    proba = fitted.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), proba)
    np.testing.assert_array_equal(fitted.predict(X), LABELS[proba.argmax(axis=1)])
    np.testing.assert_array_equal(
        fitted.decision_function(X).argmax(axis=1), proba.argmax(axis=1)
    )


def test_member_predictions_equal_those_of_their_nets(fitted):
    X, _ = table(seed=5)
    logits = fitted.member_decision_function(X)
    probas = fitted.member_predict_proba(X)
    assert probas.shape == logits.shape == (3, N_SAMPLES, 3)
    for net, member, proba in zip(fitted.estimators_, logits, probas):
        with torch.no_grad():
            want = net.module_.eval()(torch.tensor(X, dtype=torch.float32)).numpy()
        np.testing.assert_allclose(member, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(proba, net.predict_proba(X.astype("f4")), rtol=1e-4)


def test_decision_function_is_the_mean_logit(fitted):
    X, _ = table(seed=5)
    mean = fitted.member_decision_function(X).mean(axis=0)
    decision = fitted.decision_function(X)
    shift = mean - decision  # one constant for each sample
    np.testing.assert_allclose(shift, shift[:, :1].repeat(3, axis=1), atol=1e-5)
    np.testing.assert_allclose(
        softmax(mean, axis=1), fitted.predict_proba(X), rtol=1e-4
    )


def test_decision_function_of_two_classes_is_one_dimensional():
    X, y = table()
    clf = SharpBalance(**SMALL).fit(X, LABELS[np.minimum(y, 1)])
    decision = clf.decision_function(X)
    assert decision.shape == (N_SAMPLES,)
    log_odds = np.log(clf.predict_proba(X)[:, 1] / clf.predict_proba(X)[:, 0])
    np.testing.assert_allclose(decision, log_odds, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(clf.predict(X) == "perhaps", decision > 0)


def test_last_stage_is_the_whole_ensemble(fitted):
    X, _ = table(seed=5)
    stages = list(fitted.staged_predict_proba(X))
    assert len(stages) == 3
    np.testing.assert_allclose(stages[0], fitted.member_predict_proba(X)[0], rtol=1e-6)
    np.testing.assert_array_equal(stages[-1], fitted.predict_proba(X))
    two = fitted.member_decision_function(X)[:2].mean(axis=0)
    np.testing.assert_allclose(stages[1], softmax(two, axis=1), rtol=1e-4)


def naive_aggregation(name, logits):
    """Return the aggregated probabilities, computed with numpy."""
    if name == "mean_logit":
        return softmax(logits.mean(axis=0), axis=1)
    if name == "mean_proba":
        return softmax(logits, axis=2).mean(axis=0)
    if name == "majority":
        return np.mean([np.eye(3)[member.argmax(axis=1)] for member in logits], axis=0)
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["mean_logit", "mean_proba", "majority"])
def test_aggregations(name):
    X, y = table()
    clf = SharpBalance(aggregation=name, **{**SMALL, "n_estimators": 3}).fit(X, y)
    logits = clf.member_decision_function(X).astype(float)
    want = naive_aggregation(name, logits)
    np.testing.assert_allclose(clf.predict_proba(X), want, atol=2e-6)
    assert (clf.predict_proba(X) > 0).all()  # also of classes without a vote


@pytest.mark.parametrize("kind", [SharpBalance, DiversifiedEnsembleClassifier])
def test_unfitted_ensembles_raise(kind):
    X, _ = table()
    for name in (
        "predict",
        "predict_proba",
        "decision_function",
        "member_predict_proba",
        "member_decision_function",
    ):
        with pytest.raises(NotFittedError):
            getattr(kind(), name)(X)
    with pytest.raises(NotFittedError):
        next(kind().staged_predict_proba(X))


def last_bias(clf, member):
    return clf.estimators_[member].module_.module[-1].bias.data


def test_networks_without_finite_logits_warn(fitted):
    X, _ = table()
    broken = copy.deepcopy(fitted)
    last_bias(broken, 1)[0] = torch.nan
    match = "1 of 3 networks give no finite logits for 60 of 60 samples, the first is"
    with pytest.warns(SharpBalanceWarning, match=match):
        assert np.isnan(broken.predict_proba(X)).all()
    with pytest.warns(SharpBalanceWarning, match=match):
        broken.predict(X)


def test_logits_of_minus_infinity_do_not_warn(fitted):
    X, _ = table()
    sure = copy.deepcopy(fitted)
    for member in range(3):
        last_bias(sure, member)[0] = -torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(sure.predict_proba(X)[:, 0], 0)


@pytest.mark.parametrize("kind", [SharpBalance, DiversifiedEnsembleClassifier])
def test_datasets_are_predicted_in_batches_of_bounded_memory(kind, monkeypatch):
    """A batch has at most sixteen rows of five floats."""
    X, y = table()
    trunk = {} if kind is SharpBalance else {"shared_trunk": torch.nn.Linear(5, 5)}
    clf = kind(**SMALL, **trunk).fit(X, y)
    expected, sizes = clf.predict_proba(X), []
    first = clf.trunk_.module if trunk else clf.estimators_[0].module_.module[1]
    first.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(member_data, "MAX_BATCH_BYTES", 16 * 5 * 4)
    for samples in (X, TensorDataset(torch.tensor(X, dtype=torch.float32))):
        sizes.clear()
        np.testing.assert_allclose(clf.predict_proba(samples), expected, rtol=1e-6)
        assert max(sizes) == 16


class Noisy(torch.utils.data.Dataset):
    """Items are drawn whenever they are read."""

    def __len__(self):
        return 20

    def __getitem__(self, row):
        return torch.full((5,), row / 10) + torch.rand(5)


def test_random_items_differ_between_calls(fitted):
    """Test-time augmentation needs this: a call must not seed the generator."""
    start = torch.get_rng_state()
    first, second = (fitted.predict_proba(Noisy()) for _ in range(2))
    assert not np.allclose(first, second, atol=1e-4)
    torch.set_rng_state(start)
    np.testing.assert_array_equal(fitted.predict_proba(Noisy()), first)
    torch.set_rng_state(start)
