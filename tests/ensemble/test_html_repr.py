"""HTML representation: scikit-learn's diagram and the fitted state."""

import copy
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.utils import estimator_html_repr

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.ensemble.html_repr import MAX_MEMBERS, fitted_summary_html

X, y = load_iris(return_X_y=True)
KINDS = {
    "sharpbalance": SharpBalanceEnsembleClassifier(
        max_epochs=3, validation_fraction=0.2, early_stopping=5, random_state=0
    ),
    "deep": DeepEnsembleClassifier(max_epochs=2, engine="skorch", random_state=0),
    "diversified": DiversifiedEnsembleClassifier(max_epochs=2, random_state=0),
}


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    return copy.deepcopy(KINDS[request.param]).fit(X, y)


@pytest.fixture(scope="module")
def balanced():
    return copy.deepcopy(KINDS["sharpbalance"]).fit(X, y)


class Summary(HTMLParser):
    """Lines and rows of a summary; elements must be closed in order."""

    def __init__(self, html):
        super().__init__()
        self.lines, self.rows, self.stack = [], [], []
        self.feed(html)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.stack.append(tag)
        if tag == "p":
            self.lines.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "p":
            self.lines[-1] += data
        elif self.stack and self.stack[-1] in ("th", "td"):
            self.rows[-1][-1] += data

    def column(self, name):
        head, *rows = self.rows
        return [row[head.index(name)] for row in rows]


def test_html_has_the_diagram_and_the_state(fitted):
    # scikit-learn numbers its diagrams, whose ids therefore differ.
    diagram, shown = (
        re.sub(r"(sk-(?:container|estimator)-id)-\d+", r"\1", html)
        for html in (estimator_html_repr(fitted), fitted._repr_html_())
    )
    assert shown == diagram + fitted_summary_html(fitted)
    bundle = fitted._repr_mimebundle_()
    assert bundle["text/plain"] == repr(fitted)
    assert bundle["text/html"].endswith(fitted_summary_html(fitted))


def test_state_has_the_values_of_the_members(fitted):
    summary = Summary(fitted_summary_html(fitted))
    assert summary.column("member") == [str(i) for i in range(3)]
    assert summary.column("epochs") == [str(len(h)) for h in fitted.history_]
    loss = [float(text) for text in summary.column("train loss")]
    last = [records[-1]["train_loss"] for records in fitted.history_]
    np.testing.assert_allclose(loss, last, rtol=1e-3)
    seconds = [float(text) for text in summary.column("seconds")]
    durations = [sum(record["dur"] for record in h) for h in fitted.history_]
    np.testing.assert_allclose(seconds, durations, rtol=1e-2)
    n_samples = len(fitted.train_indices_)
    assert f"3 members, 3 classes, {n_samples} training samples" in summary.lines[0]
    assert repr(fitted.engine_.name) in summary.lines[1]
    assert fitted.engine_.reason in summary.lines[1]


def test_masks_and_scores(balanced):
    summary = Summary(fitted_summary_html(balanced))
    share = [float(text.rstrip("%")) for text in summary.column("SAM share")]
    np.testing.assert_allclose(share, 100 * balanced.sam_masks_.mean(1), atol=0.06)
    accuracy = [float(text) for text in summary.column("valid acc")]
    last = [records[-1]["valid_acc"] for records in balanced.history_]
    np.testing.assert_allclose(accuracy, last, atol=6e-5)
    best = balanced.validation_scores_.max()
    assert f"ensemble {best:.4f} on held-out samples" in summary.lines[0]


def test_score_is_that_of_the_restored_epoch():
    """Not that of an epoch before pruning or with equal accuracy."""
    X, y = load_digits(return_X_y=True)
    clf = DeepEnsembleClassifier(
        n_estimators=2,
        max_epochs=8,
        prune=0.98,
        validation_fraction=0.3,
        early_stopping=3,
        optimizer=torch.optim.SGD,
        lr=0.5,
        random_state=0,
        device="cpu",
    ).fit(X[:200], y[:200])
    held = np.setdiff1d(np.arange(200), clf.train_indices_)
    score, epoch = clf.score(X[held], y[held]), len(clf.history_[0])
    assert score < clf.validation_scores_.max()
    (line, *_) = Summary(fitted_summary_html(clf)).lines
    assert f"ensemble {score:.4f} on held-out samples in epoch {epoch}" in line


def test_unfitted_ensemble_shows_only_its_parameters():
    clf = SharpBalanceEnsembleClassifier()
    assert fitted_summary_html(clf) == ""
    assert "Fitted ensemble" not in clf._repr_html_()
    assert "SharpBalanceEnsembleClassifier" in clf._repr_html_()


def test_large_ensembles_and_long_reasons_are_shortened(balanced):
    clf = copy.copy(balanced)
    clf.history_ = balanced.history_ * 5
    clf.sam_masks_ = np.tile(balanced.sam_masks_, (5, 1))
    clf.engine_ = type(balanced.engine_)("skorch", "<b>" + 400 * "x")
    html = fitted_summary_html(clf)
    summary = Summary(html)
    assert len(summary.column("member")) == MAX_MEMBERS
    assert f"The first {MAX_MEMBERS} of 15 members:" in summary.lines
    assert len(summary.lines[1]) < 350
    assert "<b>" not in html
