"""Invalid inputs raise an error of one clear sentence.

A second table has unusual inputs that are valid.
"""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from sklearn_sharpbalance import MLP, DiversifiedEnsembleClassifier, load
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.evaluation import compare, evaluate, match_passes
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.plotting import SearchDisplay
from sklearn_sharpbalance.theory import sam_diversity
from tests.cases import Items, rest_slow

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


def after_fit(method, X):
    return getattr(fit(), method)(X)


def partial(*steps, **params):
    clf = SharpBalance(**{**FEW, **params})
    for step in steps:
        clf.partial_fit(*step)


CONFIGURED = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss)
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
PICTURES = RNG.integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)


def fit_joint(loss="a2d", **params):
    X_unlabeled = params.pop("X_unlabeled", None)
    params_X = params.pop("X", X)
    clf = DiversifiedEnsembleClassifier(**{**FEW, "loss": loss, **params})
    return clf.fit(params_X, Y, X_unlabeled=X_unlabeled)


def searched():
    return GridSearchCV(SharpBalance(**FEW), {"rho": [0.05]}, cv=2).fit(X, Y)


MIXED = pd.DataFrame(X).assign(**{"4": "x"}).rename(columns=int)
ONE_HOT = np.eye(3, dtype=int)[Y]
MISSING = [
    pd.Series(["a", "b", pd.NA] * 10, dtype="string"),
    pd.Series(["a", "b", None] * 10, dtype="category"),
    pl.Series(["a", "b", None] * 10),
    pd.Series([0, 1, pd.NA] * 10, dtype="Int64"),
]

BAD_SETTINGS = [
    ("sample_weight", -np.ones(30)),
    ("sample_weight", np.zeros(30)),
    ("sample_weight", np.ones(20)),
    ("sample_weight", np.full(30, np.nan)),
    ("class_weight", "fair"),
    ("class_weight", {9: 2.0}),
    ("n_estimators", 0),
    ("max_epochs", 0),
    ("lr", -0.1),
    ("batch_size", 0),
    ("flat_ratio", -0.1),
    ("flat_ratio", 1.1),
    ("rho", -0.05),
    ("rho", np.nan),
    ("rho", [0.1, 0.2, 0.3]),
    ("rho", [0.1, None]),
    ("rho", "large"),
    ("warmup_epochs", 5),
    ("warmup_epochs", 1.5),
    ("random_state", "seed"),
    ("sharpness", "fischer"),
    ("selection", "best"),
    ("aggregation", "mean"),
    ("sam", "samm"),
    ("warmup", "adam"),
    ("lr_schedule", "linear"),
    ("train_transform", "flip"),
    ("train_transform", "crop_flip"),
    ("engine", "fast"),
    ("engine", "graph"),
    ("device", "gpu"),
    ("precision", "int8"),
    ("optimizer", "adam"),
    ("callbacks", "print"),
    ("estimator__module__width", 3),
    ("sharpness__chunk", 3),
    ("early_stopping", True),
    ("estimator__criterion", nn.MSELoss),
    ("estimator__criterion", nn.CTCLoss),
    ("validation_fraction", 1.0),
    ("validation_fraction", 0.05),
]

BAD_MODULES = [
    ("resnet", "nn.Module class"),
    (dict, "nn.Module class"),
    (module(lambda m, x: m.last(x).softmax(1)), "probabilities"),
    (module(lambda m, x: (m.last(x), x)), "tuple"),
    (module(lambda m, x: m.last(x)[:, :2]), "(2, 2)"),
    (module(lambda m, x: m.last(x) * np.nan), "not finite"),
    (module(lambda m, x: m.first(x)), "failed on a batch"),
    (module(_complain), "wants 4 x 4"),
    (nn.Linear(7, 3), "shape of X"),
    (nn.Conv2d, "missing 3 required"),
    (lambda n_features=2: nn.Flatten(), "weights to train"),
    (NeuralNetClassifier(nn.Linear(4, 3)), "NLLLoss"),
]

BAD_INPUT = {
    "X_nan": (lambda: fit(changed(np.nan)), "Input X contains NaN"),
    "X_inf": (lambda: fit(changed(np.inf)), "contains infinity"),
    "X_too_large": (lambda: fit(changed(1e300)), "infinity or a value too"),
    "X_words": (
        lambda: fit(np.full((30, 4), "word", dtype=object)),
        "text or dates in 4 of 4",
    ),
    "X_none": (lambda: fit(None), "Expected 2D array, got"),
    "X_one_axis": (lambda: fit(X[:, 0]), "Expected 2D array, got 1D"),
    "X_no_rows": (lambda: fit(X[:0], Y[:0]), "0 sample"),
    "X_no_columns": (lambda: fit(X[:, :0]), "0 feature"),
    "X_complex": (lambda: fit(X[:6] + 1j, Y[:6]), "Complex data not supported"),
    "X_sparse": (lambda: fit(scipy.sparse.csr_matrix(X)), "Sparse data was passed"),
    "X_ragged": (lambda: fit([[1.0, 2.0], [3.0]] * 15), "inhomogeneous shape"),
    "X_channels": (
        lambda: fit(np.zeros((12, 8, 8, 5), dtype=np.uint8), Y[:12]),
        "(N, H, W, C)",
    ),
    "y_none": (lambda: fit(X, None), "requires y to be passed"),
    "y_short": (lambda: fit(X, Y[:20]), "X has 30, y has 20"),
    "y_continuous": (lambda: fit(X, RNG.normal(size=30)), "Unknown label type:"),
    "y_two_columns": (
        lambda: fit(X, np.stack([Y, Y], axis=1)),
        "y should be a 1d array,",
    ),
    "y_nan": (lambda: fit(X, np.where(Y == 0, np.nan, Y)), "Input y contains NaN"),
    "y_one_class": (lambda: fit(X, np.ones(30)), "at least 2 classes, but y"),
    "y_none_inside": (
        lambda: fit(X, np.array(["a", None] * 15, dtype=object)),
        "Labels are missing: y has",
    ),
    "y_mixed": (
        lambda: fit(X, np.array(["a", 1] * 15, dtype=object)),
        "y contains labels of",
    ),
    "y_nan_in_text": (lambda: fit(X, [np.nan, "a"] * 15), "Labels are missing"),
    "y_bytes": (
        lambda: fit(X, np.array([b"a", b"b", b"c"])[Y]),
        "y contains labels of type",
    ),
    "y_string_dtype": (
        lambda: fit(X, np.array(list("abc"), dtype=string_dtype())[Y]),
        "y contains labels of type",
    ),
    "y_missing_text": (lambda: fit(X, MISSING[0]), "10 of 30"),
    "y_missing_category": (lambda: fit(X, MISSING[1]), "10 of 30"),
    "y_missing_polars": (lambda: fit(X, MISSING[2]), "10 of 30"),
    "y_missing_number": (lambda: fit(X, MISSING[3]), "10 of 30"),
    "y_sparse": (lambda: fit(X, scipy.sparse.csr_matrix(ONE_HOT)), "one label"),
    "y_lists": (lambda: fit(X, [["a", "b"], ["c"]] * 15), "one label"),
    "y_tensor": (lambda: fit(X, torch.as_tensor(ONE_HOT)), "one label"),
    "X_many_words": (lambda: fit(np.full((30, 9), "Ulm", dtype=object)), "..."),
    "predict_words": (
        lambda: after_fit(
            "predict", pl.DataFrame({"a": X[:, 0], "city": ["Ulm"] * 30})
        ),
        "city",
    ),
    "validation_rare": (
        lambda: fit(y=np.r_[Y[:-1], 7], validation_fraction=0.3),
        "cannot be held out of 30",
    ),
    "module_diverges": (lambda: fit(lr=1e30, max_epochs=3), "became nan"),
    "dataset_labels": (
        lambda: fit(TensorDataset(torch.from_numpy(X)), None),
        "A dataset without labels",
    ),
    "dataset_length": (lambda: fit(NoLength(), None), "must have a length"),
    "dataset_stream": (lambda: fit(Stream(), None), "Stream is an"),
    "dataset_counted_stream": (
        lambda: fit(CountedStream(), None),
        "CountedStream is an",
    ),
    "dataset_stream_score": (
        lambda: fitted().score(CountedStream()),
        "CountedStream is an",
    ),
    "dataset_empty": (
        lambda: fit(Items(lambda i: (X[i], 0), length=0), None),
        "at least one item",
    ),
    "dataset_items": (
        lambda: fit(Items(lambda i: ("a picture", i % 3)), None),
        "must be tensors or arrays,",
    ),
    "dataset_shapes": (
        lambda: fit(Items(lambda i: (torch.zeros(4 + i % 2), i % 3)), None),
        "must have one shape, got",
    ),
    "dataset_y_short": (lambda: fit(TENSORS, Y[:9]), "X has 30, y has 9"),
    "dataset_label_vector": (
        lambda: fit(Items(lambda i: (torch.zeros(4), torch.zeros(2))), None),
        "must be one class, but",
    ),
    "dataset_label_none": (
        lambda: fit(Items(lambda i: (torch.zeros(4), None)), None),
        "Labels are missing: y has",
    ),
    "dataset_nan": (
        lambda: fit(Items(lambda i: (torch.full((4,), torch.nan), i % 3)), None),
        "Input X contains NaN",
    ),
    "dataset_no_axes": (
        lambda: fit(Items(lambda i: (torch.tensor(1.0), i % 3)), None),
        "sizes of one sample's",
    ),
    "dataset_predict_shape": (
        lambda: after_fit("predict", TensorDataset(torch.zeros(3, 5), torch.zeros(3))),
        "X is samples of shape",
    ),
    "dict_empty": (lambda: fit({}), "empty dictionary"),
    "dict_lengths": (lambda: fit({"a": X, "b": X[:9]}), "inconsistent numbers of"),
    "dict_default": (lambda: fit({"a": X}), "dictionary does not have"),
    "dict_names": (
        lambda: fit({"wrong": X}, estimator=nn.Linear(4, 3)),
        "unexpected keyword argument 'wrong'",
    ),
    "joint_loss": (lambda: fit_joint("hinge"), "'loss' param"),
    "joint_pairs": (
        lambda: fit_joint("sed", pair_members=1),
        "'pair_members' parameter",
    ),
    "joint_more_pairs": (
        lambda: fit_joint("sed", pair_members=9),
        "pair_members=9 is more than the 2 members",
    ),
    "joint_unlabeled_columns": (
        lambda: fit_joint(X=MIXED, X_unlabeled=MIXED.rename(columns={1: 7})),
        "X_unlabeled is a DataFrame of ['0', '2', '3', '4', '7']",
    ),
    "joint_unlabeled_nan": (
        lambda: fit_joint(X_unlabeled=changed(np.nan)),
        "contains NaN",
    ),
    "joint_unlabeled_empty": (lambda: fit_joint(X_unlabeled=X[:0]), "0 sample"),
    "joint_devices": (
        lambda: fit_joint("sed", device=["cpu", "cpu"]),
        "one device, but got",
    ),
    "load_folder": (lambda: load("."), ". is a folder"),
    "display_of_one_parameter": (
        lambda: SearchDisplay.from_estimator(searched()),
        "is not the name of one parameter of the search",
    ),
    "passes_below_zero": (lambda: match_passes(SharpBalance(), -1), "passes must be"),
    "fit_params_number": (
        lambda: compare({"a": SharpBalance()}, X, Y, fit_params=5),
        "fit_params must map",
    ),
    "fit_params_flat": (
        lambda: compare({"a": SharpBalance()}, X, Y, fit_params={"a": 5}),
        "fit_params must map",
    ),
    "corruptions_number": (
        lambda: evaluate(fitted(), X, Y, corruptions=5),
        "corruptions must be",
    ),
    "theory_steps": (lambda: sam_diversity(10**6, eta=0.1, rho=0.1, n=30, d=10), "k"),
    "not_fitted": (lambda: SharpBalance().predict(X), "is not fitted yet"),
    "predict_columns": (
        lambda: after_fit("predict", X[:, :3]),
        "X has 3 features, but",
    ),
    "predict_nan": (
        lambda: after_fit("predict_proba", changed(np.nan)),
        "contains NaN",
    ),
    "predict_kind": (
        lambda: after_fit("predict", {"a": X}),
        "X is a dictionary of 'a' of shape",
    ),
    "predict_keys": (
        lambda: fit({"input": X}, estimator=nn.Linear(4, 3)).predict({"b": X}),
        "X is a dictionary of 'b' of shape",
    ),
    "predict_pictures": (
        lambda: fit(PICTURES, Y[:12]).predict(PICTURES[:, :6]),
        "was fitted on samples of",
    ),
    "partial_fit_pictures": (
        lambda: fit(PICTURES, Y[:12]).partial_fit(PICTURES[:, :6], Y[:12]),
        "was fitted on samples of",
    ),
    "partial_fit_classes": (
        lambda: partial((X, Y), (X, Y + 3)),
        "not among the classes",
    ),
    "warm_start_shape": (
        lambda: (
            fit(warm_start=True).set_params(estimator__module__hidden=(3,)).fit(X, Y)
        ),
        "does not fit the new",
    ),
}


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_bad_setting_is_named(name, value):
    pattern = "(?i)" + name.rpartition("__")[2].replace("_", "[_ ]")
    with pytest.raises((ValueError, TypeError), match=pattern) as caught:
        fit(**{name: value})
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(("estimator", "message"), BAD_MODULES)
def test_bad_module(estimator, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        fit(estimator=estimator)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    call, message = BAD_INPUT[case]
    errors = (ValueError, TypeError, DivergenceError)
    with pytest.raises(errors, match=re.escape(message)) as caught:
        call()
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("estimator", [None, MLP, CONFIGURED])
@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("hidden", "module__hidden"),
        ("weight_deca", "optimizer__weight_decay"),
        ("label_smoothing", "criterion__label_smoothing"),
        ("max_epoch", "max_epochs"),
    ],
)
def test_unknown_setting_of_the_net_raises_with_a_suggestion(estimator, name, offered):
    with pytest.raises(InvalidInputError, match=f"'estimator__{offered}'") as caught:
        fit(estimator=estimator, lr=0.1, **{f"estimator__{name}": 5})
    assert " _" not in str(caught.value)  # no private names


def read_only_map(tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


UNUSUAL = {
    "read_only_map": lambda tmp: (read_only_map(tmp), read_only(Y)),
    "labels_of_bool": lambda tmp: (X, Y > 0),
    "object_numbers": lambda tmp: (X.astype(object), Y),
    "object_words": lambda tmp: (X, np.array(list("abc"), dtype=object)[Y]),
    "big_endian": lambda tmp: (X.astype(">f8"), Y.astype(">i2")),
    "half": lambda tmp: (X.astype(np.float16), Y.astype(np.uint8)),
    "integers": lambda tmp: (np.round(X * 10).astype(np.int64), Y),
    "constant_column": lambda tmp: (np.c_[X[:, :3], np.ones(30)], Y),
    "huge_values": lambda tmp: (X * 1e18, Y),
    "frames": lambda tmp: (pd.DataFrame(X), pd.Series(Y, index=np.arange(30) * 7)),
    "dataset_of_triples": lambda tmp: (Items(lambda i: (X[i], i % 3, "name")), None),
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
