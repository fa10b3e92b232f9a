"""Predictions of an ensemble agree with its members' and with each other."""

import copy
import warnings

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.exceptions import NotFittedError

from sklearn_sharpbalance import DiversifiedEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data import training_data as member_data
from sklearn_sharpbalance.exceptions import SharpBalanceWarning

N, EPOCHS = 60, 4
SMALL = {
    "n_estimators": 2,
    "max_epochs": EPOCHS,
    "batch_size": 20,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (16,),
}


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.8)


LABELS = np.array(["no", "perhaps", "yes"])


def weights(clf, member):
    state = clf.estimators_[member].module_.state_dict()
    return torch.cat([value.flatten().double() for value in state.values()])


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


def test_members_predict_what_their_nets_do(fitted):
    X, _ = table(seed=5)
    logits = fitted.member_decision_function(X)
    probas = fitted.member_predict_proba(X)
    assert probas.shape == logits.shape == (3, N, 3)
    for net, member, proba in zip(fitted.estimators_, logits, probas):
        with torch.no_grad():
            want = net.module_.eval()(torch.tensor(X, dtype=torch.float32)).numpy()
        np.testing.assert_allclose(member, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(proba, net.predict_proba(X.astype("f4")), rtol=1e-4)


def test_the_decision_is_the_mean_of_the_logits(fitted):
    X, _ = table(seed=5)
    mean = fitted.member_decision_function(X).mean(axis=0)
    decision = fitted.decision_function(X)
    shift = mean - decision  # one constant for each sample
    np.testing.assert_allclose(shift, shift[:, :1].repeat(3, axis=1), atol=1e-5)
    np.testing.assert_allclose(
        softmax(mean, axis=1), fitted.predict_proba(X), rtol=1e-4
    )


def test_the_decision_of_two_classes_is_one_number():
    X, y = table()
    clf = SharpBalance(**SMALL).fit(X, LABELS[np.minimum(y, 1)])
    decision = clf.decision_function(X)
    assert decision.shape == (N,)
    log_odds = np.log(clf.predict_proba(X)[:, 1] / clf.predict_proba(X)[:, 0])
    np.testing.assert_allclose(decision, log_odds, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(clf.predict(X) == "perhaps", decision > 0)


def test_stages_end_at_the_whole_ensemble(fitted):
    X, _ = table(seed=5)
    stages = list(fitted.staged_predict_proba(X))
    assert len(stages) == 3
    np.testing.assert_allclose(stages[0], fitted.member_predict_proba(X)[0], rtol=1e-6)
    np.testing.assert_array_equal(stages[-1], fitted.predict_proba(X))
    two = fitted.member_decision_function(X)[:2].mean(axis=0)
    np.testing.assert_allclose(stages[1], softmax(two, axis=1), rtol=1e-4)


def test_prediction_leaves_the_members_alone(fitted):
    before = [weights(fitted, i) for i in range(3)]
    fitted.predict(table()[0])
    for i in range(3):
        assert weights(fitted, i).equal(before[i])


def by_hand(name, logits):
    """What each aggregation means, in numpy."""
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
    want = by_hand(name, logits)
    np.testing.assert_allclose(clf.predict_proba(X), want, atol=2e-6)
    assert (clf.predict_proba(X) > 0).all()  # a vote of none is no logarithm of zero


def test_a_function_as_aggregation():
    X, y = table()

    def first_member(logits):
        return softmax(logits[0], axis=-1)

    clf = SharpBalance(aggregation=first_member, **SMALL).fit(X, y)
    np.testing.assert_allclose(clf.predict_proba(X), clf.member_predict_proba(X)[0])


def test_a_soup_is_one_net_of_mean_weights():
    X, y = table()
    clf = SharpBalance(aggregation="uniform_soup", **SMALL).fit(X, y)
    first, second = (net.module_.state_dict() for net in clf.estimators_)
    soup = copy.deepcopy(clf.estimators_[0].module_).eval()
    soup.load_state_dict({key: (first[key] + second[key]) / 2 for key in first})
    with torch.no_grad():
        want = softmax(soup(torch.tensor(X, dtype=torch.float32)).numpy(), axis=1)
    np.testing.assert_allclose(clf.predict_proba(X), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [SharpBalance, DiversifiedEnsembleClassifier])
def test_an_ensemble_that_is_not_fitted_says_so(kind):
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


def test_networks_that_predict_no_numbers_are_told_of(fitted):
    X, _ = table()
    broken = copy.deepcopy(fitted)
    last_bias(broken, 1)[0] = torch.nan
    match = "1 of 3 networks gives no finite logits for 60 of 60 samples, the first is"
    with pytest.warns(SharpBalanceWarning, match=match):
        assert np.isnan(broken.predict_proba(X)).all()
    with pytest.warns(SharpBalanceWarning, match=match):
        broken.predict(X)


def test_a_class_that_members_rule_out_is_no_broken_prediction(fitted):
    X, _ = table()
    sure = copy.deepcopy(fitted)
    for member in range(3):
        last_bias(sure, member)[0] = -torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(sure.predict_proba(X)[:, 0], 0)


class Items(torch.utils.data.Dataset):
    def __init__(self, X):
        self.X = torch.tensor(X, dtype=torch.float32)

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        return self.X[row]


@pytest.mark.parametrize("kind", [SharpBalance, DiversifiedEnsembleClassifier])
def test_items_of_a_dataset_pass_in_the_memory_of_arrays(kind, monkeypatch):
    """Rows of five floats: sixteen of them fill what may pass at once."""
    X, y = table()
    trunk = {} if kind is SharpBalance else {"shared_trunk": torch.nn.Linear(5, 5)}
    clf = kind(**SMALL, **trunk).fit(X, y)
    expected, sizes = clf.predict_proba(X), []
    first = clf.trunk_.module if trunk else clf.estimators_[0].module_.module[1]
    first.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(member_data, "MAX_BATCH_BYTES", 16 * 5 * 4)
    for samples in (X, Items(X)):
        sizes.clear()
        np.testing.assert_allclose(clf.predict_proba(samples), expected, rtol=1e-6)
        assert max(sizes) == 16


class Noisy(torch.utils.data.Dataset):
    """Each look at an item is another one."""

    def __len__(self):
        return 20

    def __getitem__(self, row):
        return torch.full((5,), row / 10) + torch.rand(5)


def test_items_drawn_at_random_are_others_in_each_call(fitted):
    """What test-time augmentation lives on: a call must not start its own draws."""
    start = torch.get_rng_state()
    first, second = (fitted.predict_proba(Noisy()) for _ in range(2))
    assert not np.allclose(first, second, atol=1e-4)
    torch.set_rng_state(start)
    np.testing.assert_array_equal(fitted.predict_proba(Noisy()), first)
    torch.set_rng_state(start)
