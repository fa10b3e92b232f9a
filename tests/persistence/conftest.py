"""A small fitted model and its file."""

import pytest

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from tests.training.killing import small_data


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a small fitted model, and its file."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    clf = SharpBalanceEnsembleClassifier(
        n_estimators=2,
        max_epochs=2,
        batch_size=32,
        random_state=0,
        device="cpu",
        estimator__module__hidden=(4,),
    ).fit(*small_data())
    clf.save(path)
    return clf, path
