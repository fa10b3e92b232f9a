"""Small data, and figures that are closed after each test."""

import matplotlib.pyplot as plt
import pytest
from sklearn.datasets import make_classification


@pytest.fixture(scope="session")
def data():
    """Return a table of 160 samples, with labels of three classes."""
    return make_classification(
        160, 5, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.2, random_state=0
    )


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")
