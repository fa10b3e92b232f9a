"""Ensembles with given predictions: a sample is the number of its row."""

import numpy as np


class Fake:
    """Duck-typed ensemble; ``X[:, 0]`` are the rows of the predictions to return.

    Parameters
    ----------
    member_probas : array of shape (M, N, C)
    proba : array of shape (N, C), default=None
        Predictions of the ensemble; the mean of the members' if None.
    logits : array of shape (M, N, C), default=None
        Logits of the members.
    classes : array of shape (C,), default=None
        Labels of the classes; their numbers if None.
    """

    def __init__(self, member_probas, proba=None, logits=None, classes=None):
        self.probas = np.asarray(member_probas, dtype=float)
        self.proba = self.probas.mean(0) if proba is None else np.asarray(proba)
        self.classes_ = np.arange(self.probas.shape[2]) if classes is None else classes
        if logits is not None:
            self.member_decision_function = lambda X: np.asarray(logits)[:, rows(X)]

    def member_predict_proba(self, X):
        return self.probas[:, rows(X)]

    def predict_proba(self, X):
        return self.proba[rows(X)]


class Single:
    """A classifier without members."""

    def __init__(self, proba):
        self.proba = np.asarray(proba)
        self.classes_ = np.arange(self.proba.shape[1])

    def predict_proba(self, X):
        return self.proba[rows(X)]


def rows(X):
    """Return the row numbers of samples."""
    return np.asarray(X)[:, 0].astype(int)


def made_up(seed, n_members=3, n_samples=60, n_classes=4, peak=0.4):
    """Return random probabilities, labels that are often predicted, and samples."""
    rng = np.random.default_rng(seed)
    probas = rng.dirichlet(np.full(n_classes, peak), size=(n_members, n_samples))
    y = rng.integers(n_classes, size=n_samples)
    right = rng.random(n_samples) < 0.6
    y[right] = probas.mean(0).argmax(1)[right]
    return probas, y, np.arange(n_samples, dtype=float)[:, None]
