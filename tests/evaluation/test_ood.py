"""Detection of out-of-distribution samples, compared with scikit-learn."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.evaluation import evaluate
from tests.evaluation.fake import Fake, Single, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def auroc(known, foreign):
    truth = np.r_[np.zeros(len(known)), np.ones(len(foreign))]
    return roc_auc_score(truth, np.r_[known, foreign])


NAMES = {"MSP": "msp", "entropy": "entropy", "PDS": "pds"}
NAMES["mutual information"] = "mutual_information"


def areas(estimator, X, y, foreign, part="ensemble"):
    """Return the AUROC of each score in a report."""
    frame = evaluate(estimator, X, y, ood=foreign, n_bootstrap=0).to_frame()
    rows = frame[(frame["metric"] == "ood_auroc") & (frame["part"] == part)]
    return {NAMES[row.detail]: row.mean for row in rows.itertuples(index=False)}


def test_auroc_equals_scikit_learns():
    probas, y, X = made_up(3, n_samples=60)
    mean = probas.mean(0)

    def entropy(p):
        return -(p * np.log(p)).sum(-1)

    per_sample = {
        "msp": -mean.max(-1),
        "entropy": entropy(mean),
        "mutual_information": entropy(mean) - entropy(probas).mean(0),
        "pds": probas.max(0).mean(-1),
    }
    expected = {name: auroc(s[:30], s[30:]) for name, s in per_sample.items()}
    found = areas(Fake(probas), X[:30], y[:30], X[30:])
    assert found == pytest.approx(expected)
    alone = {"msp": -probas.max(-1), "entropy": entropy(probas)}
    expected = {
        name: np.mean([auroc(s[:30], s[30:]) for s in scores])
        for name, scores in alone.items()
    }
    found = areas(Fake(probas), X[:30], y[:30], X[30:], part="members")
    assert found == pytest.approx(expected)
    # A classifier without members has the scores of one prediction only.
    assert areas(Single(probas[0]), X, y, X).keys() == {"msp", "entropy"}


def test_msp_is_that_of_the_ensembles_prediction():
    X, y = load_iris(return_X_y=True)
    clf = DeepEnsembleClassifier(n_estimators=2, max_epochs=3, random_state=0)
    clf.fit(X[y < 2], y[y < 2])
    found = areas(clf, X[y < 2], y[y < 2], X[y == 2])["msp"]
    known, foreign = (clf.predict_proba(X[rows]).max(1) for rows in (y < 2, y == 2))
    assert found == pytest.approx(auroc(-known, -foreign))


def test_intervals_of_auroc_equal_a_loop():
    probas, y, X = made_up(5, n_samples=60)
    report = evaluate(
        Fake(probas),
        X[:40],
        y[:40],
        ood={"far": X[40:], "near": X[10:20]},
        n_bootstrap=80,
        random_state=2,
    )
    score = -probas.mean(0).max(-1)
    known = np.random.default_rng([2, 40, 0])
    foreign = np.random.default_rng([2, 20, 0, 1])
    values = sorted(
        auroc(score[:40][known.integers(40, size=40)], score[40:][f])
        for f in (foreign.integers(20, size=20) for _ in range(80))
    )
    row = report.row("Fake", "ood_auroc", detail="far: MSP")
    assert row["mean"] == pytest.approx(auroc(score[:40], score[40:]))
    assert row["low"] == pytest.approx(values[1])
    assert row["high"] == pytest.approx(values[77])
    found = report.to_frame(wide=True).loc["ood_auroc"].index
    assert ("ensemble", "near: PDS") in found
    assert ("members", "near: PDS") not in found
