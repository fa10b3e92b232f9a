"""Ensembles on a DataFrame with numbers, categories and missing values."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from torch import nn

from sklearn_sharpbalance import DiversifiedEnsembleClassifier, load
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import (
    InvalidInputError,
    SharpBalanceError,
    SharpBalanceWarning,
)
from sklearn_sharpbalance.metrics import mean_fisher_trace
from sklearn_sharpbalance.persistence.allowed_names import SPECIAL_TAGS, special_value
from sklearn_sharpbalance.persistence.archive import read_archive, write_archive
from tests.cases import KINDS, SMALL, assert_same_members, rest_slow

pl = pytest.importorskip("polars")

N = 96


def columns(n=N, seed=0):
    """Return columns as lists with None for missing values, and labels."""
    rng = np.random.default_rng(seed)
    city = rng.choice(["Bonn", "Ulm", "Jena"], n)
    member = rng.random(n) < 0.5
    age = np.round(rng.normal(40, 10, n), 1)
    y = np.where(city == "Bonn", "yes", np.where(member, "no", "maybe"))
    given = {
        "age": age.tolist(),
        "member": member.tolist(),
        "city": city.tolist(),
        "visits": rng.integers(0, 9, n).tolist(),
        "size": rng.choice(["S", "M", "L"], n).tolist(),
    }
    for name, step in (("age", 7), ("member", 11), ("city", 13)):
        for i in range(3, n, step):
            given[name][i] = None
    return given, y


def as_pandas(n=N, seed=0):
    given, y = columns(n, seed)
    frame = pd.DataFrame(given).astype({"age": float, "member": "boolean"})
    frame["size"] = frame["size"].astype("category")
    return frame, y


def as_polars(n=N, seed=0):
    given, y = columns(n, seed)
    return pl.DataFrame(given).with_columns(pl.col("size").cast(pl.Categorical)), y


@pytest.fixture(scope="module")
def fitted():
    return SharpBalance(**SMALL).fit(*as_pandas())


# Fit and predict ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", rest_slow(KINDS, [SharpBalance, DiversifiedEnsembleClassifier])
)
@pytest.mark.parametrize("frame", rest_slow([as_pandas, as_polars]))
def test_a_mixed_frame_is_learned(kind, frame):
    X, y = frame(200)
    clf = kind(**SMALL | {"max_epochs": 12, "lr": 0.02}).fit(X, y)
    test, y_test = frame(200, seed=1)
    assert clf.score(test, y_test) > 0.85  # the largest class has half of the samples
    assert clf.n_features_in_ == 5
    assert clf.feature_names_in_.tolist() == list(columns()[0])


def test_pandas_and_polars_give_the_same_ensemble(fitted):
    X, y = as_polars()
    clf = SharpBalance(**SMALL).fit(X, y)
    assert_same_members(clf, fitted)
    np.testing.assert_array_equal(clf.member_inputs(X), fitted.member_inputs(X))
    np.testing.assert_array_equal(
        clf.predict_proba(as_pandas()[0]), fitted.predict_proba(X)
    )


def test_the_members_see_the_encoded_columns(fitted):
    X, _ = as_pandas()
    encoded = fitted.member_inputs(X)
    # age, missing; member, missing; 3 cities, missing; visits; 3 sizes
    assert encoded.shape == (N, 12)
    assert encoded.dtype == np.float32
    assert fitted.estimators_[0].module_.module[1].in_features == 12
    np.testing.assert_array_equal(encoded[:, 1], X["age"].isna())
    np.testing.assert_array_equal(encoded[:, 4], X["city"] == "Bonn")


def test_codes_are_not_standardised(fitted):
    module = fitted.estimators_[0].module_
    codes = [1, 3, 4, 5, 6, 7, 9, 10, 11]
    assert (module.mean[codes] == 0).all()
    assert (module.scale[codes] == 1).all()
    numbers = fitted.member_inputs(as_pandas()[0])[:, [0, 2, 8]].astype(float)
    cuts = [0.25, 0.5, 0.75]
    first, median, third = np.quantile(numbers, cuts, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(module.mean[[0, 2, 8]], median, rtol=1e-6)
    has_range = third > first
    want = ((third - first) / 1.349)[has_range]
    got = module.scale[[0, 2, 8]].numpy()[has_range]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_unknown_categories_and_new_missing_values_are_predicted(fitted):
    X, _ = as_pandas()
    other = X.assign(city="Rome", visits=np.nan, size=None)
    assert np.isfinite(fitted.predict_proba(other)).all()
    median = fitted.member_inputs(X.assign(visits=X["visits"].median()))
    np.testing.assert_array_equal(fitted.member_inputs(other)[:, 8], median[:, 8])


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_of_complete_numbers_equal_arrays(frame):
    """Bit for bit, with and without booleans, and also with held-out samples."""
    rng = np.random.default_rng(0)
    X = {f"x{i}": rng.normal(size=N) for i in range(3)}
    X["flag"] = rng.random(N) < 0.3
    y = (X["x0"] > 0).astype(int)
    array = np.column_stack(list(X.values()))
    options = {**SMALL, "validation_fraction": 0.25, "aggregation": "temperature"}
    clf = SharpBalance(**options).fit(frame(X), y)
    want = SharpBalance(**options).fit(array, y)
    assert_same_members(clf, want)
    np.testing.assert_array_equal(
        clf.predict_proba(frame(X)), want.predict_proba(array)
    )
    np.testing.assert_array_equal(clf.train_indices_, want.train_indices_)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(
            clf.predict_proba(array), want.predict_proba(array)
        )


# Many columns -------------------------------------------------------------------------


def test_many_categories_are_not_scaled_down():
    """Logistic regression on the same zeros and ones has an accuracy of 0.85."""
    rng = np.random.default_rng(0)
    city = rng.integers(500, size=2900)
    labels = rng.integers(2, size=500)[city]
    X = pd.DataFrame({"city": [f"city {i}" for i in city]})
    clf = SharpBalance(n_estimators=2, random_state=0, device="cpu")
    clf.fit(X[:900], labels[:900])
    assert (clf.estimators_[0].module_.scale == 1).all()
    assert clf.score(X[900:], labels[900:]) > 0.84


def test_rare_counts_are_not_scaled_down_but_noise_is():
    rng = np.random.default_rng(0)
    counts, noise = rng.poisson(0.3, (300, 120)), rng.normal(size=(300, 120))
    labels = (noise[:, 0] > 0).astype(int)
    clf = SharpBalance(**SMALL | {"max_epochs": 1})
    clf.fit(np.hstack([counts, noise]), labels)
    scale = clf.estimators_[0].module_.scale
    assert (scale[:120] < 4).all()
    assert scale[120] < 3
    assert (scale[121:] > 3).float().mean() > 0.95


# No leaks -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_rows_do_not_decide_how_columns_are_encoded(kind):
    X, y = as_pandas()
    clf = kind(validation_fraction=0.3, **SMALL).fit(X, y)
    train = X.iloc[clf.train_indices_]
    other = X.copy()
    held = np.setdiff1d(np.arange(N), clf.train_indices_)
    other.loc[held, "age"] = 1e4
    other.loc[held, "city"] = "Rome"
    again = kind(validation_fraction=0.3, **SMALL).fit(other, y)
    assert again.input_format_ == clf.input_format_
    assert clf.input_format_.columns.columns[0].fill == pytest.approx(
        train["age"].median(), rel=1e-6
    )


# Copies, files and checkpoints --------------------------------------------------------


def test_copies_are_exact(fitted, tmp_path):
    X, y = as_pandas(seed=3)
    want = fitted.predict_proba(X)
    fitted.save(tmp_path / "model")
    copies = [pickle.loads(pickle.dumps(fitted)), load(tmp_path / "model")]
    for one in copies:
        assert one.input_format_ == fitted.input_format_
        np.testing.assert_array_equal(one.predict_proba(X), want)
    again = clone(fitted).fit(*as_pandas())
    assert_same_members(again, fitted)
    # partial_fit of a loaded ensemble uses the columns of its fit.
    copies[1].partial_fit(X, y)
    assert copies[1].input_format_ == fitted.input_format_


def set_column(**values):
    def change(tree):
        tree["input_format"]["columns"]["columns"][2].update(values)

    return change


CRAFTED = {
    "kind": set_column(kind="code"),
    "fewer": set_column(categories=("Bonn", "Ulm")),
    "many": set_column(categories=tuple(map(str, range(10_000)))),
    "more": set_column(func="eval"),
    "number": set_column(kind="number"),
    "no columns": lambda tree: tree["input_format"].update(columns=None),
    "other": lambda tree: tree["input_format"].update(columns={"columns": 3}),
    "shape": lambda tree: tree["input_format"].update(shape=(13,)),
    "table": lambda tree: tree["input_format"].update(kind="table"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_columns_raise(case, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    tree = read_archive(tmp_path / "model", "model", SPECIAL_TAGS)
    CRAFTED[case](tree)
    write_archive(tmp_path / "crafted", "model", tree, special=special_value)
    with pytest.raises(SharpBalanceError):
        load(tmp_path / "crafted").predict(as_pandas()[0])


def test_a_torch_program_takes_the_encoded_matrix(fitted, tmp_path):
    X, _ = as_pandas(seed=2)
    fitted.export_torch(tmp_path / "model")
    program = torch.export.load(tmp_path / "model").module()
    proba = program(torch.from_numpy(fitted.member_inputs(X))).numpy()
    np.testing.assert_allclose(proba, fitted.predict_proba(X), atol=1e-6)


# More data later ----------------------------------------------------------------------


def test_partial_fit_keeps_the_columns_of_the_first_call():
    X, y = as_pandas()
    clf = SharpBalance(**SMALL).partial_fit(X, y)
    before = clf.input_format_
    later = X.assign(city="Rome", age=X["age"] + 100)
    clf.partial_fit(later, y)
    assert clf.input_format_ == before
    assert clf.n_iter_ == 2
    with pytest.raises(ValueError, match="feature names"):
        clf.partial_fit(X[list(X)[::-1]], y)


@pytest.mark.parametrize("kind", KINDS)
def test_warm_start_keeps_the_columns(kind):
    X, y = as_pandas()
    clf = kind(warm_start=True, **SMALL).fit(X, y)
    before = clf.input_format_
    clf.fit(X.assign(city=X["city"].replace("Ulm", "Rome")), y)
    assert clf.input_format_ == before
    with pytest.raises(InvalidInputError, match=r"warm_start=True .* fitted to the c"):
        clf.fit(X.rename(columns={"age": "years"}), y)
    clf.set_params(warm_start=False).fit(X.drop(columns="age"), y)
    assert clf.n_features_in_ == 4


# Parts that read the inputs of members ------------------------------------------------


def test_metrics_take_the_frame(fitted):
    X, y = as_pandas()
    assert np.isfinite(mean_fisher_trace(fitted, X, y)).all()
    assert len(list(fitted.staged_predict_proba(X))) == 2
    assert fitted.member_predict_proba(X).shape == (2, N, 3)


@pytest.mark.parametrize("loss", ["sed", "a2d"])
def test_joint_training_takes_frames_without_labels(loss):
    X, y = as_pandas()
    other = as_pandas(seed=4)[0].assign(city="Rome")
    clf = DiversifiedEnsembleClassifier(loss=loss, **SMALL)
    clf.fit(X, y, X_unlabeled=other)
    assert clf.predict(other).shape == (N,)
    with pytest.raises(ValueError, match="feature names should match"):
        clf.set_params(loss="a2d").fit(X, y, X_unlabeled=other.drop(columns="age"))


def test_a_trunk_takes_the_encoded_columns():
    X, y = as_pandas()
    options = {k: v for k, v in SMALL.items() if "hidden" not in k}
    clf = DiversifiedEnsembleClassifier(shared_trunk=nn.Linear(12, 6), **options)
    assert clf.fit(X, y).predict(X).shape == (N,)


# Bad input ----------------------------------------------------------------------------

OK = np.arange(N)
BAD = {
    "dates": ({"b": pd.date_range("2020-01-01", periods=N)}, "'b' of X contains dates"),
    "mixed": ({"b": [1, "x"] * (N // 2)}, "'b' of X contains both text and numbers"),
    "lists": ({"b": [[1]] * N}, "'b' of X contains objects of type list"),
    "infinite": ({"b": [np.inf] * N}, "infinity .* in column 'b', first in row 0"),
    "nothing": ({"a": [None] * N}, "All values of X are missing"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_columns_raise_with_their_name(kind, case):
    change, message = BAD[case]
    X = pd.DataFrame({"a": OK, **change})
    clf = kind(**SMALL)
    with pytest.raises(InvalidInputError, match=message):
        clf.fit(X, OK % 2)
    assert not hasattr(clf, "n_features_in_")


def test_duplicate_names_raise():
    X = pd.DataFrame(np.zeros((N, 2)), columns=["a", "a"])
    with pytest.raises(InvalidInputError, match="2 columns of the name 'a'"):
        SharpBalance(**SMALL).fit(X, OK % 2)


def test_columns_without_a_value_are_ignored_with_a_warning():
    X, y = as_pandas()
    with pytest.warns(SharpBalanceWarning, match="no value in 1 of 6 columns: 'empty'"):
        clf = SharpBalance(**SMALL).fit(X.assign(empty=np.nan), y)
    assert clf.n_features_in_ == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        want = clf.predict_proba(X.assign(empty=np.nan))
        np.testing.assert_array_equal(clf.predict_proba(X.assign(empty="x")), want)


def test_an_array_cannot_replace_a_frame_with_categories(fitted):
    X, _ = as_pandas()
    message = (
        "fitted on a DataFrame with .* in 'age', 'member', .* X is not a DataFrame"
    )
    for array in (X.to_numpy(), fitted.member_inputs(X), np.zeros((3, 5))):
        with pytest.raises(InvalidInputError, match=message):
            fitted.predict(array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X[list(X)[::-1]], "must be in the same order"),
        (lambda X: X.drop(columns="age"), "Feature names seen at fit time, yet now"),
        (lambda X: X.assign(new=1), "Feature names unseen at fit time"),
        (lambda X: X.assign(age="x"), "'age' of X contains text, such as 'x'"),
        (lambda X: X.assign(city=1), "'city' of X contains numbers, such as 1"),
        (lambda X: X.assign(age=np.inf), "infinity .* in column 'age'"),
        (lambda X: X[:0], r"0 sample\(s\)"),
    ],
)
def test_other_columns_than_in_fit_raise(change, message, fitted):
    with pytest.raises(ValueError, match=message):
        fitted.predict(change(as_pandas()[0]))
