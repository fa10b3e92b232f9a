"""ONNX models of ensembles that were fitted on a DataFrame take its columns."""

import warnings

import numpy as np
import pandas as pd
import pytest

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from tests.cases import rest_slow

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pl = pytest.importorskip("polars")

N = 120
FEW = {"n_estimators": 2, "max_epochs": 3, "batch_size": 32, "random_state": 0}


def table(seed=0):
    """Return a frame of every kind of column, with missing values, and labels."""
    rng = np.random.default_rng(seed)
    names = [f"name {i}" if i % 3 else "Kim" for i in range(N)]
    frame = {
        "age": rng.normal(40, 10, N),
        "visits": rng.integers(0, 9, N),
        "linear": rng.normal(size=N) * 1e4,  # also a name inside of the ensemble
        "constant": 1.0,
        "member": rng.random(N) < 0.5,
        "flag": pd.array(rng.random(N) < 0.5, dtype="boolean"),
        "city": rng.choice(["Bonn", "Köln", "Ulm"], N),
        "always": "x",
        "name": names,  # most are rare
        "size": pd.Categorical(rng.choice(["S", "M"], N)),
        "store": pd.Categorical(rng.integers(5, 9, N)),
        "level": pd.Categorical(rng.choice([0.1, 0.25], N)),
        "grade": pd.Categorical(rng.integers(1, 4, N)),
        "open": pd.Categorical(rng.random(N) < 0.5),
        "id": pd.Categorical(np.arange(N)),  # all are rare
        "empty": rng.choice(["", "a", "b"], N),
        "nothing": None,
    }
    frame = pd.DataFrame(frame)
    y = np.where(frame["city"] == "Bonn", "yes", np.where(frame["member"], "no", "?"))
    for name, step in {"age": 7, "flag": 11, "city": 13, "store": 5, "name": 9}.items():
        frame.loc[::step, name] = None
    return frame, y


def unseen(frame):
    """Return rows with unknown categories and new missing values."""
    frame = frame.assign(city="Rome", level=7.5, store=99, always="y")
    frame["visits"] = frame["visits"].where(frame.index % 4 > 0)
    frame["size"] = frame["size"].astype(object).where(frame.index % 3 > 0)
    return frame


def feed(session, X):
    """Return the columns of a frame as the inputs of a model."""
    X = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X.to_dict(as_series=False))
    return {
        column.name: X[[column.name]].astype(object).fillna("").to_numpy()
        if column.type == "tensor(string)"
        else X[[column.name]].to_numpy("float32", na_value=np.nan)
        for column in session.get_inputs()
    }


def exported(clf, folder):
    clf.export_onnx(folder / "model.onnx")
    return onnxruntime.InferenceSession(folder / "model.onnx")


KINDS = rest_slow([SharpBalance, DeepEnsembleClassifier, DiversifiedEnsembleClassifier])


@pytest.fixture(scope="module", params=KINDS)
def fitted(request, tmp_path_factory):
    """Return an ensemble, its frame, and a session of its exported model."""
    X, y = table()
    with warnings.catch_warnings():  # of columns without value and of numbers as text
        warnings.simplefilter("ignore", SharpBalanceWarning)
        clf = request.param(**FEW).fit(X, y)
    return clf, X, exported(clf, tmp_path_factory.mktemp("model"))


def test_the_onnx_model_encodes_the_columns(fitted):
    clf, X, session = fitted
    for rows in (X, table(seed=1)[0], unseen(X), X[:1]):
        (got,) = session.run(["probabilities"], feed(session, rows))
        np.testing.assert_allclose(got, clf.predict_proba(rows), rtol=0, atol=1e-6)
    inputs = {column.name: column for column in session.get_inputs()}
    assert list(inputs) == [name for name in X if name != "nothing"]
    assert all(column.shape == ["batch", 1] for column in inputs.values())
    strings = [n for n, column in inputs.items() if column.type == "tensor(string)"]
    assert strings == ["city", "always", "name", "size", "id", "empty"]


@pytest.mark.parametrize(
    ("name", "missing"), [("age", np.nan), ("city", ""), ("store", np.nan)]
)
def test_missing_values_change_the_prediction_as_in_python(name, missing, fitted):
    clf, X, session = fitted
    row = X.iloc[[1]].copy()
    arrays = feed(session, row)
    (complete,) = session.run(None, arrays)
    arrays[name] = np.array([[missing]], arrays[name].dtype)
    (got,) = session.run(None, arrays)
    row[name] = None
    np.testing.assert_allclose(got, clf.predict_proba(row), rtol=0, atol=1e-6)
    assert np.abs(got - complete).max() > 1e-4


@pytest.mark.slow
def test_a_polars_frame_gives_the_same_model(tmp_path):
    X, y = table()
    X = X[["age", "visits", "member", "city"]]
    frame = pl.DataFrame(X.astype(object).where(X.notna(), None).to_dict("list"))
    clf = DeepEnsembleClassifier(**FEW).fit(frame, y)
    session = exported(clf, tmp_path)
    (got,) = session.run(None, feed(session, frame))
    np.testing.assert_allclose(got, clf.predict_proba(frame), rtol=0, atol=1e-6)


def with_column(**column):
    return table()[0][["age"]].assign(**column)


REFUSED = {
    "empty": (
        with_column(city=["", None, "Ulm"] * 40),
        "Column 'city' .* stands for a missing value, but fit had both",
    ),
    "float32": (
        with_column(id=pd.Categorical([2**24, 2**24 + 1] * 60)),
        "Column 'id' .* equal as float32. Convert them to text",
    ),
    "name": (
        with_column(probabilities=0.5),
        "Column 'probabilities' .* name is taken. Rename it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_names_a_column_that_cannot_be_exported(case, tmp_path):
    X, message = REFUSED[case]
    clf = DeepEnsembleClassifier(**FEW).fit(X, table()[1])
    with pytest.raises(InvalidInputError, match=message):
        clf.export_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_columns_are_no_bytes(tmp_path):
    clf = DeepEnsembleClassifier(**FEW).fit(with_column(), table()[1])
    with pytest.raises(InvalidInputError, match="dtype must be 'float32', got 'uint8'"):
        clf.export_onnx(tmp_path / "model.onnx", dtype="uint8")
