"""Early stopping scores the aggregated prediction; all trained epochs are counted."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from skorch.callbacks import EarlyStopping
from torch import nn

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.evaluation import gradient_passes
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import column, noise, rest_slow

SMALL = {
    "max_epochs": 5,
    "n_estimators": 2,
    "validation_fraction": 0.3,
    "early_stopping": 5,
    "random_state": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:200], y[:200]


@pytest.fixture(scope="module")
def train_rows(digits):
    """Return the rows that are not held out, which depend on the seed only."""
    return DeepEnsembleClassifier(**SMALL).fit(*digits).train_indices_


def held_out(clf, *arrays):
    rows = np.setdiff1d(np.arange(len(arrays[0])), clf.train_indices_)
    return tuple(array[rows] for array in arrays)


RULES = [*AGGREGATIONS, lambda z: softmax(z[-1], axis=1)]
WITH_AVERAGES = [(rule, "uniform") for rule in RULES]
DIFFERENT = [("mean_logit", None), ("temperature", None), ("greedy_soup", None)]
DIFFERENT += [(RULES[-1], None), ("mean_logit", "uniform")]


@pytest.mark.parametrize(
    ("rule", "averaging"),
    rest_slow([*product(RULES, [None]), *WITH_AVERAGES], keep=DIFFERENT),
)
def test_best_score_is_that_of_the_final_prediction(digits, rule, averaging):
    clf = DeepEnsembleClassifier(aggregation=rule, weight_averaging=averaging, **SMALL)
    clf.fit(*digits)
    best = len(clf.history_[0]) - 1
    assert clf.validation_scores_[best] == clf.validation_scores_.max()
    score = clf.score(*held_out(clf, *digits))
    assert clf.validation_scores_[best] == pytest.approx(score)


class Normed(nn.Module):
    """Mean weights need new BatchNorm statistics."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.Linear(n_features, 12)
        self.norm = nn.BatchNorm1d(12)
        self.last = nn.Linear(12, n_classes)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def scale_and_shift(x):
    """Change the statistics of a batch, and thereby predictions."""
    return 3 * x + torch.rand_like(x)


@pytest.mark.parametrize("transform", rest_slow([scale_and_shift, None]))
def test_score_of_every_epoch_equals_that_of_a_shorter_fit(digits, transform):
    options = {**SMALL, "aggregation": "uniform_soup", "lr_schedule": "constant"}
    options |= {"train_transform": transform}
    whole_fit = DeepEnsembleClassifier(Normed, **options).fit(*digits)
    scores = whole_fit.validation_scores_
    assert len(set(scores)) > 3
    for n, score in enumerate(scores, 1):
        short = {**options, "max_epochs": n, "early_stopping": False}
        clf = DeepEnsembleClassifier(Normed, **short).fit(*digits)
        assert clf.score(*held_out(clf, *digits)) == pytest.approx(score)


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_n_iter_is_the_number_of_trained_epochs(engine):
    """The maximum over members; callbacks stop each of them inside a segment."""
    options = {**SMALL, "early_stopping": False, "max_epochs": 24, "lr": 0.1}
    options |= {"optimizer": torch.optim.SGD, "engine": engine, "n_estimators": 3}
    stopper = EarlyStopping(monitor="valid_loss", patience=2, threshold=0)
    clf = DeepEnsembleClassifier(callbacks=[stopper], **options).fit(*noise(100))
    free = DeepEnsembleClassifier(**options).fit(*noise(100))
    lengths = [len(history) for history in clf.history_]
    assert clf.n_iter_ == max(lengths) < 24
    assert min(lengths) < max(lengths)
    assert max(lengths) % 5  # inside a segment
    for member, n in enumerate(lengths):  # the end of one does not change the others
        losses = column(clf, "valid_loss", member)
        assert losses == column(free, "valid_loss", member)[:n]
        assert min(losses[:-2]) < min(losses[-2:])


def easy(n=60):
    """Return two separate classes, which are learned in the first epoch."""
    y = np.arange(n) % 2
    X = np.random.default_rng(0).normal(size=(n, 4)) + 8 * y[:, None]
    return X, y


@pytest.mark.parametrize("patience", [1, 4])
def test_patience_counts_accuracy_and_likelihood_breaks_ties(patience):
    options = {**SMALL, "max_epochs": 30, "early_stopping": patience}
    clf = DeepEnsembleClassifier(**options).fit(*easy())
    rises = np.flatnonzero(clf.validation_scores_ == clf.validation_scores_.max())
    assert clf.n_iter_ == len(clf.validation_scores_) == rises[0] + 1 + patience < 30
    for history in clf.history_:
        losses = [record["valid_loss"] for record in history]
        # The likelihood rises in every epoch.
        assert losses == sorted(losses, reverse=True)
    assert len(clf.history_[0]) == clf.n_iter_  # so that the last epoch was kept


def test_n_passes_counts_selections_after_the_best_epoch(tmp_path):
    """The best epoch may be in the warm-up, before any selection."""
    options = {**SMALL, "max_epochs": 6, "lr": 0.5, "warmup_epochs": 3, "rho": 0.3}
    options |= {"n_estimators": 3, "flat_ratio": 0.2, "optimizer": torch.optim.SGD}
    whole = SharpBalanceEnsembleClassifier(**{**options, "early_stopping": False})
    share = whole.fit(*noise(100)).sam_masks_.mean(axis=1)
    want = (3 * 2 + 3 * (1 + share)).sum()
    assert gradient_passes(whole) == pytest.approx(want)
    for _ in range(2):  # the second fit is loaded
        clf = SharpBalanceEnsembleClassifier(
            **{**options, "early_stopping": 6}, checkpoint_dir=tmp_path / "fit"
        ).fit(*noise(100))
        assert len(clf.history_[0]) <= 3
        assert gradient_passes(clf) == pytest.approx(want)


def test_patience_starts_after_the_warm_up():
    """The warm-up ends with the first selection."""
    options = {**SMALL, "max_epochs": 12, "warmup_epochs": 7, "early_stopping": 2}
    clf = SharpBalanceEnsembleClassifier(**options).fit(*easy())
    assert clf.validation_scores_[0] == clf.validation_scores_.max()
    assert clf.n_iter_ == 7 + 2
    patient = {**options, "early_stopping": 12}
    whole = SharpBalanceEnsembleClassifier(**patient).fit(*easy())
    np.testing.assert_array_equal(
        whole.validation_scores_[: clf.n_iter_], clf.validation_scores_
    )


@pytest.mark.parametrize(
    "rule", rest_slow(["mean_logit", "best_member", "greedy_soup"], keep=2)
)
@pytest.mark.parametrize("class_weight", rest_slow([{0: 30.0}, None]))
def test_scores_use_the_weights_of_held_out_samples(digits, rule, class_weight):
    """As in scikit-learn; class weights are not used."""
    weight = np.random.default_rng(0).exponential(size=200) ** 3
    options = {**SMALL, "aggregation": rule, "class_weight": class_weight}
    clf = DeepEnsembleClassifier(**options).fit(*digits, sample_weight=weight)
    best = len(clf.history_[0]) - 1
    X, y, w = held_out(clf, *digits, weight)
    score = clf.score(X, y, sample_weight=w)
    assert clf.validation_scores_[best] == pytest.approx(score, rel=1e-5)
    assert clf.validation_scores_[best] == clf.validation_scores_.max()
    assert score != pytest.approx(clf.score(X, y), abs=1e-3)
    if rule == "best_member":
        members = [
            accuracy_score(y, net.predict(X.astype(np.float32)), sample_weight=w)
            for net in clf.estimators_
        ]
        np.testing.assert_allclose(clf.aggregation_.accuracies_, members, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"early_stopping": 2}, "early_stopping"),
        ({"early_stopping": False, "aggregation": "best_member"}, "BestMemberAggreg"),
    ],
)
def test_held_out_samples_of_weight_zero_raise(digits, options, name, train_rows):
    params = {**SMALL, **options}
    weight = np.isin(np.arange(200), train_rows).astype(float)
    with pytest.raises(InvalidInputError, match=f"{name}.* have weight zero"):
        DeepEnsembleClassifier(**params).fit(*digits, sample_weight=weight)
    params |= {"early_stopping": False, "aggregation": "mean_logit"}
    DeepEnsembleClassifier(**params).fit(*digits, sample_weight=weight)


@pytest.mark.parametrize("estimator", [None, Normed])
@pytest.mark.parametrize(
    "kind", [DeepEnsembleClassifier, DiversifiedEnsembleClassifier]
)
def test_history_uses_the_weights_of_held_out_samples(digits, kind, estimator):
    weight = np.random.default_rng(0).exponential(size=200) ** 3
    options = {name: SMALL[name] for name in SMALL if name != "early_stopping"}
    clf = kind(estimator, **options).fit(*digits, sample_weight=weight)
    X, y, w = held_out(clf, *digits, weight)
    for probas, records in zip(clf.member_predict_proba(X), clf.history_):
        losses, right = -np.log(probas[range(len(y)), y]), probas.argmax(1) == y
        got = records[-1]["valid_loss"], records[-1]["valid_acc"]
        want = np.average(losses, weights=w), np.average(right, weights=w)
        assert got == pytest.approx(want, rel=1e-4)
        assert got != pytest.approx((losses.mean(), right.mean()), rel=1e-3)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_scores_of_an_earlier_fit_are_removed(digits, method):
    clf = DeepEnsembleClassifier(**SMALL).fit(*digits)
    assert len(clf.validation_scores_)
    clf.set_params(early_stopping=False, validation_fraction=None)
    getattr(clf, method)(*digits)
    assert not hasattr(clf, "validation_scores_")
