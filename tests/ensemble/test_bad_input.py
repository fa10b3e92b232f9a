"""Invalid inputs raise an error of one clear sentence.

A second table has unusual inputs that are valid.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import NotFittedError
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from sklearn_sharpbalance import DiversifiedEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance._validation import InvalidParameterError
from sklearn_sharpbalance.exceptions import (
    DivergenceError,
    InvalidInputError,
    UnsupportedEngineError,
)
from tests.cases import rest_slow

FEW = {
    "n_estimators": 2,
    "max_epochs": 1,
    "batch_size": 16,
    "device": "cpu",
    "random_state": 0,
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
Y = np.arange(30) % 3


def string_dtype():
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 2 has it")
    return np.dtypes.StringDType()


def fit(X=X, y=Y, *, sample_weight=None, **params):
    return SharpBalance(**{**FEW, **params}).fit(X, y, sample_weight=sample_weight)


def changed(value):
    spoiled = X.astype(np.float64)
    spoiled[3, 1] = value
    return spoiled


# Faulty modules and Datasets ----------------------------------------------------------


def module(forward):
    """Return a network of one layer with a custom result."""

    class CustomCall(nn.Module):
        def __init__(self, n_features=4, n_classes=3):
            super().__init__()
            self.last = nn.Linear(n_features, n_classes)

        def __call__(self, x):
            return forward(self, x)

    return CustomCall


def _complain(m, x):
    raise ValueError("wants 4 x 4, got 8 x 8.")


class Items(Dataset):
    """A Dataset whose items are the results of a function."""

    def __init__(self, item, length=30):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.item(i)


class NoLength(Dataset):
    def __getitem__(self, i):
        return torch.zeros(4), i % 3


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(4), 0


class CountedStream(Stream):
    def __len__(self):
        return 1


def fitted():
    return fit(pd.DataFrame(X, columns=list("abcd")))


def after_fit(method, X, names=False):
    clf = fitted() if names else fit()
    return getattr(clf, method)(X)


def partial(*steps, **params):
    clf = SharpBalance(**{**FEW, **params})
    for step in steps:
        clf.partial_fit(*step)


TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
PICTURES = RNG.integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)


def fit_joint(loss="a2d", **params):
    X_unlabeled = params.pop("X_unlabeled", None)
    clf = DiversifiedEnsembleClassifier(**{**FEW, "loss": loss, **params})
    return clf.fit(X, Y, X_unlabeled=X_unlabeled)


BAD = {
    # X
    "X_nan": (lambda: fit(changed(np.nan)), ValueError, "Input X contains NaN"),
    "X_inf": (lambda: fit(changed(np.inf)), ValueError, "contains infinity"),
    "X_too_large": (
        lambda: fit(changed(1e300)),
        ValueError,
        "infinity or a value too large",
    ),
    "X_words": (
        lambda: fit(np.full((30, 4), "word", dtype=object)),
        ValueError,
        r"text or dates in 4 of 4 columns: 0 \(such as 'word'\)",
    ),
    "X_none": (lambda: fit(None), ValueError, "Expected 2D array, got scalar"),
    "X_one_axis": (lambda: fit(X[:, 0]), ValueError, "Expected 2D array, got 1D"),
    "X_no_rows": (lambda: fit(X[:0], Y[:0]), ValueError, "0 sample"),
    "X_no_columns": (lambda: fit(X[:, :0]), ValueError, "0 feature"),
    "X_complex": (
        lambda: fit(X[:6] + 1j, Y[:6]),
        ValueError,
        "Complex data not supported",
    ),
    "X_sparse": (
        lambda: fit(scipy.sparse.csr_matrix(X)),
        TypeError,
        "Sparse data was passed",
    ),
    "X_ragged": (
        lambda: fit([[1.0, 2.0], [3.0]] * 15),
        ValueError,
        "inhomogeneous shape",
    ),
    "X_channels": (
        lambda: fit(np.zeros((12, 8, 8, 5), dtype=np.uint8), Y[:12]),
        InvalidInputError,
        r"Pictures must be \(N, H, W, C\).*got uint8 of shape",
    ),
    # y
    "y_none": (lambda: fit(X, None), InvalidInputError, "requires y to be passed"),
    "y_short": (lambda: fit(X, Y[:20]), InvalidInputError, "X has 30, y has 20"),
    "y_continuous": (
        lambda: fit(X, RNG.normal(size=30)),
        ValueError,
        "Unknown label type: continuous",
    ),
    "y_two_columns": (
        lambda: fit(X, np.stack([Y, Y], axis=1)),
        ValueError,
        r"y should be a 1d array, got an array of shape \(30, 2\)",
    ),
    "y_nan": (
        lambda: fit(X, np.where(Y == 0, np.nan, Y)),
        InvalidInputError,
        "Input y contains NaN",
    ),
    "y_one_class": (
        lambda: fit(X, np.ones(30)),
        InvalidInputError,
        "at least 2 classes, but y contains one class",
    ),
    "y_none_inside": (
        lambda: fit(X, np.array(["a", None] * 15, dtype=object)),
        InvalidInputError,
        "Labels are missing: y has no label for 15 of 30 samples, first in row 1",
    ),
    "y_mixed": (
        lambda: fit(X, np.array(["a", 1] * 15, dtype=object)),
        InvalidInputError,
        "y contains labels of several types",
    ),
    "y_bytes": (
        lambda: fit(X, np.array([b"a", b"b", b"c"])[Y]),
        InvalidInputError,
        r"y contains labels of type bytes_, .* Use strings .* y\.astype\(str\)",
    ),
    "y_string_dtype": (
        lambda: fit(X, np.array(list("abc"), dtype=string_dtype())[Y]),
        InvalidInputError,
        r"y contains labels of type str, .* Use strings .* y\.astype\(str\)",
    ),
    # weights
    "weight_negative": (
        lambda: fit(sample_weight=-np.ones(30)),
        ValueError,
        "Negative values in data passed to `sample_weight`",
    ),
    "weight_zero": (
        lambda: fit(sample_weight=np.zeros(30)),
        ValueError,
        "at least one non-zero",
    ),
    "weight_short": (
        lambda: fit(sample_weight=np.ones(20)),
        ValueError,
        r"sample_weight.shape == \(20,\), expected \(30,\)",
    ),
    "weight_nan": (
        lambda: fit(sample_weight=np.full(30, np.nan)),
        ValueError,
        "sample_weight contains NaN",
    ),
    "class_weight_name": (
        lambda: fit(class_weight="fair"),
        InvalidParameterError,
        "'class_weight' parameter",
    ),
    "class_weight_unknown": (
        lambda: fit(class_weight={9: 2.0}),
        ValueError,
        r"The classes, \[0, 1, 2\], are not in class_weight",
    ),
    # numbers
    "n_estimators": (lambda: fit(n_estimators=0), InvalidParameterError, "n_estimat"),
    "max_epochs": (lambda: fit(max_epochs=0), InvalidParameterError, "'max_epochs'"),
    "lr": (lambda: fit(lr=-0.1), InvalidParameterError, "'lr'"),
    "batch_size": (lambda: fit(batch_size=0), InvalidParameterError, "'batch_size'"),
    "flat_ratio_low": (
        lambda: fit(flat_ratio=-0.1),
        InvalidParameterError,
        r"'flat_ratio' parameter .* in the range \[0.0, 1.0\]",
    ),
    "flat_ratio_high": (lambda: fit(flat_ratio=1.1), InvalidParameterError, "flat_rat"),
    "rho_negative": (
        lambda: fit(rho=-0.05),
        InvalidInputError,
        "rho must be finite and >= 0, got -0.05",
    ),
    "rho_nan": (lambda: fit(rho=np.nan), InvalidInputError, "rho must be finite"),
    "rho_length": (
        lambda: fit(rho=[0.1, 0.2, 0.3]),
        InvalidInputError,
        r"one number per member \(2\)",
    ),
    "rho_of_a_member": (
        lambda: fit(rho=[0.1, None]),
        InvalidInputError,
        "rho must be finite",
    ),
    "rho_text": (lambda: fit(rho="large"), InvalidInputError, "rho must be a number"),
    "warmup_long": (
        lambda: fit(warmup_epochs=5),
        InvalidInputError,
        "warmup_epochs=5 is more than max_epochs=1",
    ),
    "warmup_share": (lambda: fit(warmup_epochs=1.5), InvalidParameterError, "warmup_e"),
    "reselect": (lambda: fit(reselect_every=0), InvalidParameterError, "'reselect_ev"),
    "n_jobs": (lambda: fit(n_jobs="all"), InvalidParameterError, "'n_jobs'"),
    "random_state": (
        lambda: fit(random_state="seed"),
        InvalidParameterError,
        "'random_state'",
    ),
    "checkpoint_every": (
        lambda: fit(checkpoint_every=0),
        InvalidParameterError,
        "'checkpoint_every'",
    ),
    "on_checkpoint_error": (
        lambda: fit(on_checkpoint_error="ignore"),
        InvalidParameterError,
        "'on_checkpoint_error'",
    ),
    "unknown_parameter": (
        lambda: SharpBalance(flatratio=0.3),
        TypeError,
        "unexpected parameter 'flatratio'",
    ),
    # names
    "sharpness": (
        lambda: fit(sharpness="fischer"),
        InvalidInputError,
        "Unknown sharpness 'fischer'. Choose one of 'fisher_trace'",
    ),
    "selection": (
        lambda: fit(selection="best"),
        InvalidInputError,
        "Unknown selection 'best'",
    ),
    "aggregation": (
        lambda: fit(aggregation="mean"),
        InvalidInputError,
        "Unknown aggregation 'mean'",
    ),
    "sam": (lambda: fit(sam="samm"), InvalidInputError, "Unknown sam 'samm'"),
    "warmup": (lambda: fit(warmup="adam"), InvalidParameterError, "'warmup' parameter"),
    "lr_schedule": (
        lambda: fit(lr_schedule="linear"),
        InvalidInputError,
        "Unknown lr_schedule 'linear'",
    ),
    "transform": (
        lambda: fit(train_transform="flip"),
        InvalidInputError,
        "Unknown train_transform 'flip'",
    ),
    "transform_of_a_table": (
        lambda: fit(train_transform="crop_flip"),
        InvalidInputError,
        r"'crop_flip' needs pictures \(C, H, W\), but X is samples of shape \(4,\)",
    ),
    "engine": (lambda: fit(engine="fast"), InvalidParameterError, "'engine' parameter"),
    "engine_refuses": (
        lambda: fit(engine="graph"),
        UnsupportedEngineError,
        "engine='graph' cannot train this ensemble: the device is cpu",
    ),
    "device": (
        lambda: fit(device="gpu"),
        InvalidInputError,
        "Unknown device 'gpu'. Use 'auto', 'cpu'",
    ),
    "precision": (lambda: fit(precision="int8"), InvalidParameterError, "'precision'"),
    "optimizer": (
        lambda: fit(optimizer="adam"),
        InvalidInputError,
        "optimizer must be a class of torch.optim or None, got 'adam'",
    ),
    "callbacks": (lambda: fit(callbacks="print"), InvalidParameterError, "'callbacks'"),
    "nested": (
        lambda: fit(estimator__module__width=3),
        InvalidInputError,
        "A member cannot be made of MLP: .* unexpected keyword argument 'width'",
    ),
    "nested_part": (
        lambda: fit(sharpness__chunk=3),
        ValueError,
        "Invalid parameter 'chunk' for estimator FisherTraceScorer",
    ),
    # held-out samples
    "early_stopping": (
        lambda: fit(early_stopping=True),
        InvalidInputError,
        "early_stopping needs held-out samples",
    ),
    "validation_share": (
        lambda: fit(validation_fraction=1.0),
        InvalidParameterError,
        "'validation_fraction'",
    ),
    "validation_small": (
        lambda: fit(validation_fraction=0.05),
        InvalidInputError,
        "validation_fraction=0.05 cannot be held out of 30 samples in 3 classes",
    ),
    "validation_rare": (
        lambda: fit(y=np.r_[Y[:-1], 7], validation_fraction=0.3),
        InvalidInputError,
        "cannot be held out of 30 samples in 4 classes",
    ),
    "temperature_without": (
        lambda: fit(aggregation="temperature"),
        InvalidInputError,
        "needs held-out samples",
    ),
    # modules
    "estimator": (
        lambda: fit(estimator="resnet"),
        InvalidInputError,
        "estimator must be None, an nn.Module class",
    ),
    "estimator_class": (
        lambda: fit(estimator=dict),
        InvalidInputError,
        "estimator must be None, an nn.Module class",
    ),
    "module_proba": (
        lambda: fit(estimator=module(lambda m, x: m.last(x).softmax(1))),
        InvalidInputError,
        "returned probabilities, but the criterion CrossEntropyLoss takes logits",
    ),
    "module_tuple": (
        lambda: fit(estimator=module(lambda m, x: (m.last(x), x))),
        InvalidInputError,
        "returned a tuple; it must return one tensor",
    ),
    "module_width": (
        lambda: fit(estimator=module(lambda m, x: m.last(x)[:, :2])),
        InvalidInputError,
        r"returned shape \(2, 2\) for 2 samples of 3 classes",
    ),
    "module_nan": (
        lambda: fit(estimator=module(lambda m, x: m.last(x) * np.nan)),
        InvalidInputError,
        "not finite before any training",
    ),
    "module_raises": (
        lambda: fit(estimator=module(lambda m, x: m.first(x))),
        InvalidInputError,
        "failed on a batch of shape",
    ),
    "module_raises_a_sentence": (
        lambda: fit(estimator=module(_complain)),
        InvalidInputError,
        r"wants 4 x 4, got 8 x 8\. Check that it takes",
    ),
    "aggregation_name": (
        lambda: fit(aggregation="mean"),
        InvalidInputError,
        r"or pass an Aggregation or a function\.",
    ),
    "module_shape": (
        lambda: fit(estimator=nn.Linear(7, 3)),
        InvalidInputError,
        "Check that it takes samples of the shape of X",
    ),
    "module_needs_more": (
        lambda: fit(estimator=nn.Conv2d),
        InvalidInputError,
        "A member cannot be made of Conv2d: .*missing 3 required",
    ),
    "module_without_weights": (
        lambda: fit(estimator=lambda: nn.Identity(), X=X[:, :3]),
        InvalidInputError,
        "empty parameter list. Check .* that it has weights to train",
    ),
    "module_diverges": (
        lambda: fit(lr=1e30, max_epochs=3),
        DivergenceError,
        "became nan|inf.*Lower lr or rho",
    ),
    "nll_without_proba": (
        lambda: fit(estimator=NeuralNetClassifier(nn.Linear(4, 3))),
        InvalidInputError,
        "With criterion=NLLLoss skorch takes probabilities",
    ),
    # Datasets and dictionaries
    "dataset_labels": (
        lambda: fit(TensorDataset(torch.from_numpy(X)), None),
        InvalidInputError,
        "A dataset without labels cannot be fitted",
    ),
    "dataset_length": (
        lambda: fit(NoLength(), None),
        InvalidInputError,
        "must have a length",
    ),
    "dataset_stream": (
        lambda: fit(Stream(), None),
        InvalidInputError,
        "Stream is an IterableDataset, .* Pass a Dataset with __getitem__",
    ),
    "dataset_counted_stream": (
        lambda: fit(CountedStream(), None),
        InvalidInputError,
        "CountedStream is an IterableDataset, .* Pass a Dataset with __getitem__",
    ),
    "dataset_stream_score": (
        lambda: fitted().score(CountedStream()),
        InvalidInputError,
        "CountedStream is an IterableDataset",
    ),
    "dataset_empty": (
        lambda: fit(Items(lambda i: (X[i], 0), length=0), None),
        InvalidInputError,
        "at least one item",
    ),
    "dataset_items": (
        lambda: fit(Items(lambda i: ("a picture", i % 3)), None),
        InvalidInputError,
        "must be tensors or arrays, got str",
    ),
    "dataset_shapes": (
        lambda: fit(Items(lambda i: (torch.zeros(4 + i % 2), i % 3)), None),
        InvalidInputError,
        r"must have one shape, got \[\(4,\), \(5,\)\]",
    ),
    "dataset_y_short": (
        lambda: fit(TENSORS, Y[:9]),
        InvalidInputError,
        "X has 30, y has 9",
    ),
    "dataset_label_vector": (
        lambda: fit(Items(lambda i: (torch.zeros(4), torch.zeros(2))), None),
        InvalidInputError,
        r"must be one class, but Items has labels of shape \(2,\)",
    ),
    "dataset_label_none": (
        lambda: fit(Items(lambda i: (torch.zeros(4), None)), None),
        ValueError,
        "Labels are missing: y has no label for 30 of 30 samples",
    ),
    "dataset_nan": (
        lambda: fit(Items(lambda i: (torch.full((4,), torch.nan), i % 3)), None),
        InvalidInputError,
        "returned values that are not finite before any training",
    ),
    "dataset_dict": (
        lambda: fit(Items(lambda i: ({"a": torch.zeros(4)}, i % 3)), None),
        InvalidInputError,
        "must be tensors or arrays, got dict",
    ),
    "dataset_no_axes": (
        lambda: fit(Items(lambda i: (torch.tensor(1.0), i % 3)), None),
        InvalidInputError,
        r"sizes of one sample's axes, each at least 1, got \(\)",
    ),
    "dataset_predict_shape": (
        lambda: after_fit("predict", TensorDataset(torch.zeros(3, 5), torch.zeros(3))),
        InvalidInputError,
        r"X is samples of shape \(5,\), but .* was fitted on samples of shape \(4,\)",
    ),
    "dict_empty": (lambda: fit({}), InvalidInputError, "empty dictionary"),
    "dict_lengths": (
        lambda: fit({"a": X, "b": X[:9]}),
        ValueError,
        "inconsistent numbers of samples",
    ),
    "dict_default": (
        lambda: fit({"a": X}),
        InvalidInputError,
        "dictionary does not have. Pass an nn.Module class",
    ),
    "dict_names": (
        lambda: fit({"wrong": X}, estimator=nn.Linear(4, 3)),
        InvalidInputError,
        r"dictionary of 'wrong', .* but it takes \(input",
    ),
    # members trained together
    "joint_loss": (lambda: fit_joint("hinge"), InvalidParameterError, "'loss' param"),
    "joint_pairs": (
        lambda: fit_joint("sed", pair_members=1),
        InvalidParameterError,
        "'pair_members' parameter",
    ),
    "joint_no_unlabeled": (
        fit_joint,
        InvalidInputError,
        "loss='a2d' needs samples without labels, but got X_unlabeled=None",
    ),
    "joint_unlabeled_shape": (
        lambda: fit_joint(X_unlabeled=X[:, None]),
        InvalidInputError,
        r"same layout as X, but X_unlabeled is samples of shape \(1, 4\) and X is",
    ),
    "joint_unlabeled_dataset": (
        lambda: fit_joint(X_unlabeled=TensorDataset(torch.zeros(9, 5))),
        InvalidInputError,
        r"same layout as X, but X_unlabeled is samples of shape \(5,\) and X is",
    ),
    "joint_unlabeled_nan": (
        lambda: fit_joint(X_unlabeled=changed(np.nan)),
        ValueError,
        "contains NaN",
    ),
    "joint_unlabeled_empty": (
        lambda: fit_joint(X_unlabeled=X[:0]),
        ValueError,
        "0 sample",
    ),
    "joint_trunk": (
        lambda: fit_joint("sed", shared_trunk="resnet18"),
        InvalidInputError,
        "shared_trunk must be None, an nn.Module or a function",
    ),
    "joint_callback": (
        lambda: fit_joint("sed", callbacks=[LRScheduler()]),
        InvalidInputError,
        "an LRScheduler sets the learning rate. Remove that callback",
    ),
    "joint_devices": (
        lambda: fit_joint("sed", device=["cpu", "cpu"]),
        InvalidInputError,
        r"one device, but got device=\['cpu', 'cpu'\]\. Pass one of them",
    ),
    # after fit
    "not_fitted": (
        lambda: SharpBalance().predict(X),
        NotFittedError,
        "is not fitted yet",
    ),
    "predict_columns": (
        lambda: after_fit("predict", X[:, :3]),
        ValueError,
        "X has 3 features, but SharpBalanceEnsembleClassifier is expecting 4",
    ),
    "predict_names": (
        lambda: after_fit("predict", pd.DataFrame(X, columns=list("abce")), names=True),
        ValueError,
        "feature names should match",
    ),
    "predict_nan": (
        lambda: after_fit("predict_proba", changed(np.nan)),
        ValueError,
        "contains NaN",
    ),
    "predict_kind": (
        lambda: after_fit("predict", {"a": X}),
        InvalidInputError,
        r"X is a dictionary of 'a', but .* was fitted on samples of shape \(4,\)",
    ),
    "predict_keys": (
        lambda: fit({"input": X}, estimator=nn.Linear(4, 3)).predict({"b": X}),
        InvalidInputError,
        "X is a dictionary of 'b', but .* was fitted on a dictionary of 'input'",
    ),
    "predict_pictures": (
        lambda: fit(PICTURES, Y[:12]).predict(PICTURES[:, :6]),
        InvalidInputError,
        r"shape \(6, 8, 3\), but .* was fitted on samples of shape \(8, 8, 3\)",
    ),
    "predict_layout": (
        lambda: fit(
            TensorDataset(torch.zeros(30, 8, 8, 3), torch.arange(30) % 3),
            None,
            estimator=nn.Sequential(nn.Flatten(), nn.Linear(192, 3)),
            standardize=False,
        ).predict(np.zeros((2, 8, 8, 3), np.float32)),
        InvalidInputError,
        r"shape \(8, 8, 3\), .* sees as \(3, 8, 8\), but .* sees as \(8, 8, 3\)",
    ),
    "partial_fit_pictures": (
        lambda: fit(PICTURES, Y[:12]).partial_fit(PICTURES[:, :6], Y[:12]),
        InvalidInputError,
        r"shape \(6, 8, 3\), but .* was fitted on samples of shape \(8, 8, 3\)",
    ),
    "partial_fit_classes": (
        lambda: partial((X, Y), (X, Y + 3)),
        InvalidInputError,
        "not among the classes",
    ),
    "warm_start_shape": (
        lambda: (
            fit(warm_start=True).set_params(estimator__module__hidden=(3,)).fit(X, Y)
        ),
        InvalidInputError,
        "does not fit the new network or data. Set warm_start=False",
    ),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as caught:
        call()
    # Newer versions of scikit-learn raise some of these errors themselves.
    assert type(caught.value) in (error, InvalidInputError)
    assert len(str(caught.value)) < 2000  # one sentence


def test_number_of_cases_is_the_documented_one():
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    said = re.search(r"more than (\d+) kinds of bad input", page.read_text())
    assert len(BAD) > int(said[1])


def read_only_map(tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


UNUSUAL = {
    "negative_strides": lambda tmp: (X[::-1, ::-1], Y[::-1]),
    "read_only_map": lambda tmp: (read_only_map(tmp), read_only(Y)),
    "column_order": lambda tmp: (np.asfortranarray(X), Y),
    "strided_labels": lambda tmp: (X, np.repeat(Y, 2)[::2]),
    "labels_with_gaps": lambda tmp: (X, Y * 1000 - 7),
    "labels_of_bool": lambda tmp: (X, Y > 0),
    "labels_of_one_column": lambda tmp: (X, Y.tolist()),
    "object_numbers": lambda tmp: (X.astype(object), Y),
    "object_words": lambda tmp: (X, np.array(list("abc"), dtype=object)[Y]),
    "big_endian": lambda tmp: (X.astype(">f8"), Y.astype(">i2")),
    "half": lambda tmp: (X.astype(np.float16), Y.astype(np.uint8)),
    "integers": lambda tmp: (np.round(X * 10).astype(np.int64), Y),
    "constant_column": lambda tmp: (np.c_[X[:, :3], np.ones(30)], Y),
    "huge_values": lambda tmp: (X * 1e18, Y),
    "tensors": lambda tmp: (torch.from_numpy(X), torch.from_numpy(Y)),
    "frames": lambda tmp: (pd.DataFrame(X), pd.Series(Y, index=np.arange(30) * 7)),
    "dataset": lambda tmp: (TENSORS, None),
    "dataset_of_triples": lambda tmp: (Items(lambda i: (X[i], i % 3, "name")), None),
    "lists": lambda tmp: (X.tolist(), Y.tolist()),
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.parametrize("engine", rest_slow(["auto", "joint", "skorch"]))
def test_unusual_input_is_accepted(case, engine, tmp_path):
    X, y = UNUSUAL[case](tmp_path)
    if engine == "joint":
        clf = DiversifiedEnsembleClassifier(**FEW).fit(X, y)
    else:
        clf = fit(X, y, engine=engine)
    proba = clf.predict_proba(X)
    assert proba.shape == (30, len(clf.classes_))
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    if y is not None:
        assert set(np.unique(np.asarray(y)).tolist()) == set(clf.classes_.tolist())


PLAIN = RNG.integers(0, 255, (30, 6, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("case", ["negative_strides", "read_only_map", "columns"])
def test_memory_layout_of_pictures_does_not_matter(case, tmp_path):
    if case == "read_only_map":
        np.save(tmp_path / "X.npy", PLAIN)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    elif case == "columns":
        X = np.asfortranarray(PLAIN)
    else:
        X = np.ascontiguousarray(PLAIN[:, ::-1, ::-1])[:, ::-1, ::-1]
    assert not (X.flags.c_contiguous and X.flags.writeable)
    want = fit(PLAIN, Y)
    got = fit(X, Y)
    np.testing.assert_array_equal(got.predict_proba(X), want.predict_proba(PLAIN))


def test_numpy_scalars_are_accepted():
    clf = fit(
        n_estimators=np.int64(2),
        max_epochs=np.int32(2),
        rho=np.float32(0.05),
        flat_ratio=np.float64(0.4),
        warmup_epochs=np.int64(1),
        batch_size=np.int16(16),
        lr=np.float32(0.1),
        validation_fraction=np.float32(0.3),
        random_state=np.int64(3),
        standardize=np.bool_(True),
    )
    assert clf.n_iter_ == 2
    assert len(clf.estimators_) == 2
