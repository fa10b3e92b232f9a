"""Write models with one version of torch and read them with another.

Run as ``python -m tests.persistence.other_version write FOLDER`` by one interpreter and
with ``read`` by the other. Predictions are stored beside the models.
"""

import pickle
import sys
from pathlib import Path

import joblib
import numpy as np
import torch

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    SmallCNN,
    load,
)

FEW = {"n_estimators": 2, "max_epochs": 4, "batch_size": 32, "random_state": 0}
FEW |= {"device": "cpu"}
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(96, 5)).astype(np.float32)
PICTURES = RNG.integers(0, 255, (48, 8, 8, 3), dtype=np.uint8)
LABELS = np.array(["ant", "bee", "cicada"])[(TABLE > 0)[:, :2].sum(axis=1)]


def trunk():
    """Features that all members share, the same in every version."""
    layer = torch.nn.Linear(5, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(20.0).reshape(4, 5).sin())
        layer.bias.zero_()
    return layer


def cases(folder=None):
    """Ensembles by name, with the samples they are fitted on."""
    joint = DiversifiedEnsembleClassifier(shared_trunk=trunk(), **FEW)
    kept = {"checkpoint_dir": folder and folder / "checkpoints"}
    return {
        "sharpbalance": (SharpBalanceEnsembleClassifier(**FEW), TABLE),
        "adam": (DeepEnsembleClassifier(optimizer=torch.optim.Adam, **FEW), TABLE),
        "pictures": (SharpBalanceEnsembleClassifier(SmallCNN, **FEW), PICTURES),
        "joint": (joint, TABLE),
        "checkpoints": (SharpBalanceEnsembleClassifier(**FEW, **kept), TABLE),
    }


def write(folder):
    """Fit all ensembles and write them to the folder in every format."""
    for name, (clf, X) in cases(folder).items():
        clf.fit(X, LABELS[: len(X)])
        clf.save(folder / f"{name}.safetensors")
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(clf))
        joblib.dump(clf, folder / f"{name}.joblib")
        np.save(folder / f"{name}.npy", clf.predict_proba(X))
    (folder / "version").write_text(torch.__version__)


def read(folder):
    """Open all files and check that the models predict and continue to train."""
    assert (folder / "version").read_text() != torch.__version__
    for name, (fresh, X) in cases(folder).items():
        want, y = np.load(folder / f"{name}.npy"), LABELS[: len(X)]
        passed = {"shared_trunk": trunk()} if name == "joint" else {}
        for clf in (
            load(folder / f"{name}.safetensors", **passed),
            pickle.loads((folder / f"{name}.pickle").read_bytes()),
            joblib.load(folder / f"{name}.joblib"),
        ):
            np.testing.assert_allclose(clf.predict_proba(X), want, atol=1e-5)
            if hasattr(clf, "partial_fit"):
                assert (
                    clf.set_params(checkpoint_dir=None).partial_fit(X, y).n_iter_ == 5
                )
        if name == "checkpoints":  # a finished fit is read back
            proba = fresh.fit(X, y).predict_proba(X)
            np.testing.assert_allclose(proba, want, atol=1e-5)
    print(f"{(folder / 'version').read_text()} read by {torch.__version__}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
