"""Exported ensembles give the probabilities of ``predict_proba``."""

import json

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.persistence import archive
from sklearn_sharpbalance.persistence.export import RULES, as_module
from tests.cases import rest_slow
from tests.training.killing import small_data

FEW = {"n_estimators": 2, "max_epochs": 2, "batch_size": 32, "random_state": 0}


class Conv(torch.nn.Module):
    """A small network for images with batch normalisation."""

    def __init__(self, in_channels, n_classes):
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4, n_classes)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Parametrized(torch.nn.Module):
    """A parametrized weight, by an operation that ONNX does not have."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        ways = torch.nn.utils.parametrizations
        self.square = ways.orthogonal(torch.nn.Linear(n_features, n_features))
        self.norm = ways.spectral_norm(torch.nn.Linear(n_features, 4))
        self.last = ways.weight_norm(torch.nn.Linear(4, n_classes))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.square(x))))


class CountsByLen(torch.nn.Linear):
    def __init__(self):
        super().__init__(5, 3)

    def forward(self, x):
        return super().forward(x.reshape(len(x), 5))


class WithSoftmax(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(5, 3), torch.nn.Softmax(dim=-1))


def table(**params):
    X, y = small_data()
    X = X * [1, 10, 100, 0.1, 1] + 5  # standardisation must come along
    labels = np.array(["ant", "bee", "cicada"])[y]
    clf = SharpBalance(estimator__module__hidden=(6,), **FEW, **params)
    return clf.fit(X, labels), X.astype(np.float32)


def bytes_pictures(shape, **params):
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    X = rng.integers(0, 100, (30, *shape)) + 50 * y.reshape(-1, *[1] * len(shape))
    X = X.astype(np.uint8)
    return DeepEnsembleClassifier(Conv, **FEW, **params).fit(X, y), X


def probabilities():
    net = NeuralNetClassifier(WithSoftmax, optimizer=torch.optim.SGD)
    X, y = small_data()
    return SharpBalance(net, **{**FEW, "max_epochs": 3}).fit(X, y), X


def parametrized():
    X, y = small_data()
    return DeepEnsembleClassifier(Parametrized, **FEW).fit(X, y), X.astype(np.float32)


HELD = {"validation_fraction": 0.3}
TORCH_CASES = {
    "mean_logit": lambda: table(),
    "mean_proba": lambda: table(aggregation="mean_proba"),
    "majority": lambda: table(aggregation="majority"),
    "uniform_soup": lambda: table(aggregation="uniform_soup"),
    "greedy_soup": lambda: table(aggregation="greedy_soup", **HELD),
    "best_member": lambda: table(aggregation="best_member", **HELD),
    "temperature": lambda: table(aggregation="temperature", **HELD),
    "channels_last": lambda: bytes_pictures((8, 8, 3)),
    "channels_first": lambda: bytes_pictures((3, 8, 8)),
    "grey": lambda: bytes_pictures((8, 8)),
    "module_with_softmax": probabilities,
}
ONNX_CASES = {
    "mean_logit": lambda: table(),
    "parametrized": parametrized,
    "mean_proba_of_pictures": lambda: bytes_pictures(
        (8, 8, 3), aggregation="mean_proba"
    ),
}


def test_every_aggregation_that_is_exported_has_a_case():
    named = {name for name, kind in AGGREGATIONS.items() if kind in RULES}
    assert len(named) == len(RULES)
    assert named <= TORCH_CASES.keys()


@pytest.mark.parametrize("case", TORCH_CASES)
def test_the_module_gives_the_same_probabilities(case):
    clf, X = TORCH_CASES[case]()
    with torch.no_grad():
        got = as_module(clf)(torch.from_numpy(X))
    np.testing.assert_allclose(got, clf.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("case", rest_slow(["channels_last", "mean_logit"]))
def test_the_torch_program_gives_the_same_probabilities(case, tmp_path):
    clf, X = TORCH_CASES[case]()
    clf.export_torch(tmp_path / "model.pt2")
    extra = {"classes.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    for n in (1, 3, len(X)):
        got = program(torch.from_numpy(X[:n]))
        np.testing.assert_allclose(got, clf.predict_proba(X[:n]), atol=1e-5)
    assert json.loads(extra["classes.json"]) == clf.classes_.tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt2"]


@pytest.mark.parametrize("case", rest_slow(ONNX_CASES))
def test_the_onnx_model_gives_the_same_probabilities(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    clf, X = ONNX_CASES[case]()
    clf.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for n in (1, 3, len(X)):
        (got,) = session.run(["probabilities"], {"X": X[:n]})
        np.testing.assert_allclose(got, clf.predict_proba(X[:n]), atol=1e-5)
    assert session.get_inputs()[0].shape[0] == "batch"
    assert session.get_outputs()[0].shape == ["batch", len(clf.classes_)]
    classes = session.get_modelmeta().custom_metadata_map["classes"]
    assert json.loads(classes) == clf.classes_.tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_a_uint8_ensemble_can_be_exported_for_floats(tmp_path):
    clf, X = bytes_pictures((8, 8))
    clf.export_torch(tmp_path / "model.pt2", dtype="float32")
    program = torch.export.load(tmp_path / "model.pt2").module()
    got = program(torch.from_numpy(X.astype(np.float32)))
    np.testing.assert_allclose(got, clf.predict_proba(X), atol=1e-5)


class OwnInfer(NeuralNetClassifier):
    def infer(self, x, **params):
        return super().infer(x, **params)


class Summed(torch.nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.last = torch.nn.Linear(5, n_classes)

    def forward(self, a):
        return self.last(a)


def own_rule(logits):
    return np.full(logits.shape[1:], 1 / logits.shape[2])


REFUSED = {
    "function": (
        lambda: table(aggregation=own_rule)[0],
        "FunctionAggregation cannot be exported",
    ),
    "dict": (
        lambda: DeepEnsembleClassifier(Summed, **FEW).fit(
            {"a": small_data()[0]}, small_data()[1]
        ),
        "dictionary of arrays cannot be exported",
    ),
    "infer": (
        lambda: DeepEnsembleClassifier(
            OwnInfer(
                torch.nn.Linear,
                criterion=torch.nn.CrossEntropyLoss,
                module__in_features=5,
                module__out_features=3,
            ),
            **FEW,
        ).fit(*small_data()),
        "OwnInfer overrides infer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ensembles_that_cannot_be_exported_raise(case, tmp_path):
    fitted, message = REFUSED[case]
    with pytest.raises(InvalidInputError, match=message):
        fitted().export_torch(tmp_path / "model")


def test_an_export_does_not_remove_parametrizations():
    clf, X = parametrized()
    before = clf.predict_proba(X)
    plain = as_module(clf)
    assert not [name for name in plain.state_dict() if "parametrizations" in name]
    np.testing.assert_allclose(plain(torch.tensor(X)), before, atol=1e-6)
    for weight in plain.state_dict().values():
        weight.zero_()
    inner = clf.estimators_[0].module_.module
    assert torch.nn.utils.parametrize.is_parametrized(inner.square)
    np.testing.assert_array_equal(clf.predict_proba(X), before)


def test_the_error_names_a_network_that_cannot_be_exported(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(CountsByLen, **FEW).fit(X, y)
    match = r"cannot trace CountsByLen: (.|\n)*x.shape\[0\] for .* not len\(x\)"
    with pytest.raises(InvalidInputError, match=match):
        clf.export_torch(tmp_path / "model.pt2")


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="dtype must be 'float32' or 'uint8'"):
        table()[0].export_onnx(tmp_path / "model", dtype="int64")


@pytest.mark.parametrize("name", ["save", "export_torch", "export_onnx"])
def test_a_missing_folder_is_refused(name, tmp_path, monkeypatch):
    if name == "export_onnx":
        pytest.importorskip("onnxscript")
    monkeypatch.setattr(torch.export, "export", None)  # nothing is done before
    path = tmp_path / "nowhere" / "model"
    with pytest.raises(archive.FileNotWrittenError) as error:
        getattr(table()[0], name)(path)
    folder = path.parent
    text = f"Cannot write {path}: there is no folder {folder}. Create it first."
    assert str(error.value) == text


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("name", rest_slow(["export_torch", "export_onnx"]))
def test_an_export_that_fails_leaves_the_old_file(name, failing, tmp_path, monkeypatch):
    """No incomplete file, and the new one only when it is on the disk."""
    if name == "export_onnx":
        pytest.importorskip("onnxscript")
    clf, _ = table()
    path = tmp_path / "model.pt2"
    path.write_bytes(b"old")

    def fail(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(archive.os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        getattr(clf, name)(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
