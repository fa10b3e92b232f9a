"""A small fitted ensemble with the attributes that the displays read."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance.networks import MLP

N_CLASSES = 4


class Ensemble(ClassifierMixin, BaseEstimator):
    """Independent nets, with the attributes of a SharpBalance ensemble."""

    def __init__(self, n_estimators=3, module=MLP):
        self.n_estimators = n_estimators
        self.module = module

    def fit(self, X, y):
        self.classes_, codes = np.unique(y, return_inverse=True)
        kwargs = {"module__n_features": 64} if self.module is MLP else {}
        kwargs |= {"module__hidden": (16,)} if self.module is MLP else {}
        self.estimators_ = []
        with torch.random.fork_rng(devices=[]):
            for seed in range(self.n_estimators):
                torch.manual_seed(seed)
                net = NeuralNetClassifier(
                    self.module,
                    module__n_classes=len(self.classes_),
                    criterion=nn.CrossEntropyLoss,
                    lr=0.02,
                    max_epochs=4,
                    verbose=0,
                    **kwargs,
                )
                self.estimators_.append(net.fit(X, codes))
        self.history_ = [list(map(dict, net.history)) for net in self.estimators_]
        for epochs in self.history_:
            for record in epochs:
                record["phase"] = "warmup" if record["epoch"] < 3 else "balanced"
        rng = np.random.default_rng(0)
        self.sharpness_ = rng.exponential(size=(self.n_estimators, len(X)))
        self.sam_masks_ = self.sharpness_ > 1.0
        return self

    def member_predict_proba(self, X):
        check_is_fitted(self)
        # Not with skorch, whose loader draws from torch's global generator.
        with torch.inference_mode():
            logits = [n.module_.eval()(torch.as_tensor(X)) for n in self.estimators_]
        return _softmax(torch.stack(logits).double().numpy())

    def predict_proba(self, X):
        return _softmax(np.log(self.member_predict_proba(X)).mean(0))

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


def _softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.fixture(scope="session")
def digits():
    images, y = load_digits(n_class=N_CLASSES, return_X_y=True)
    images = images[:240].reshape(-1, 8, 8).astype(np.float32) / 16
    names = np.array(["zero", "one", "two", "three"])
    X = images.reshape(len(images), -1)
    return SimpleNamespace(X=X, y=names[y[:240]], images=images)


@pytest.fixture(scope="session")
def ensemble(digits):
    return Ensemble().fit(digits.X, digits.y)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")
