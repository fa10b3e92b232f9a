"""A small fitted ensemble, made-up predictions, and figures that are closed."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.datasets import load_digits

from sklearn_sharpbalance import MLP, SharpBalanceEnsembleClassifier
from tests.plotting.made_up import SMALL


@pytest.fixture(scope="session")
def digits():
    images, y = load_digits(n_class=4, return_X_y=True)
    images = images[:240].reshape(-1, 8, 8).astype(np.float32) / 16
    names = np.array(["zero", "one", "two", "three"])
    X = images.reshape(len(images), -1)
    return SimpleNamespace(X=X, y=names[y[:240]], images=images)


@pytest.fixture(scope="session")
def ensemble(digits):
    clf = SharpBalanceEnsembleClassifier(MLP, **SMALL)
    return clf.fit(digits.X, digits.y)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")
