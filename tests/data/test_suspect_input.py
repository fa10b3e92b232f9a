"""Input that would be misread without a word: it warns, or raises."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier, load
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from tests.cases import KINDS

N = 40
RNG = np.random.default_rng(0)
Y = np.arange(N) % 2
FEW = {"n_estimators": 1, "max_epochs": 1, "random_state": 0, "device": "cpu"}
SHAPES = {"table": (N, 30), "images": (N, 3, 8, 8), "sequences": (N, 5, 6)}


def fitted(*given, **params):
    return DeepEnsembleClassifier(**FEW, **params).fit(*given)


def numbers(shape):
    return RNG.integers(0, 255, shape).astype(np.uint8)


# Scale --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*SHAPES, "table as a frame"])
@pytest.mark.parametrize("in_fit", [255, 1])
def test_another_scale_than_in_fit_warns(kind, in_fit):
    X = numbers(SHAPES[kind.removesuffix(" as a frame")])
    X = X.astype(np.float32) if kind == "sequences" else X
    X = pd.DataFrame(X) if kind.endswith("frame") else X
    clf = fitted(X if in_fit == 255 else X / 255, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.predict(X if in_fit == 255 else X / 255)
    with pytest.warns(SharpBalanceWarning, match="scaled"):
        clf.predict(X / 255 if in_fit == 255 else X)


def test_standardised_images_in_fit_and_bytes_later_warn(tmp_path):
    X = numbers(SHAPES["images"])
    clf = fitted((X - 127.0) / 74, Y)
    clf.save(tmp_path / "model")
    for one in (clf, load(tmp_path / "model")):
        with pytest.warns(SharpBalanceWarning, match="scaled"):
            one.predict(X)


def test_a_dataset_of_another_scale_warns():
    X = torch.from_numpy(numbers(SHAPES["images"]))
    clf = fitted(TensorDataset(X, torch.from_numpy(Y)))
    with pytest.warns(SharpBalanceWarning, match="scaled"):
        clf.predict(TensorDataset(X / 255, torch.from_numpy(Y)))


@pytest.mark.parametrize("factor", [0, 0.1, 0.5])
def test_darker_images_do_not_warn(factor, recwarn):
    X = numbers(SHAPES["images"])
    clf = fitted(X, Y)
    clf.predict((factor * X).astype(np.uint8))
    clf.predict((factor * X[:3]).astype(np.float32) // 1)
    assert not [w for w in recwarn if "scaled" in str(w.message)]


# Values -------------------------------------------------------------------------------


def masked(shape, n_masked):
    mask = np.zeros(shape, dtype=bool)
    mask.ravel()[:n_masked] = True
    return np.ma.masked_array(RNG.normal(size=shape), mask)


def test_masked_arrays_raise():
    X = RNG.normal(size=(N, 3))
    clf = fitted(masked((N, 3), 0), Y)
    for refused in (clf.fit, lambda X, y: clf.predict(X)):
        with pytest.raises(InvalidInputError, match="X is a masked array"):
            refused(masked((N, 3), 4), Y)
    with pytest.raises(InvalidInputError, match="sample_weight is a masked array"):
        clf.fit(X, Y, sample_weight=masked((N, 1), 4)[:, 0])
    with pytest.raises(InvalidInputError, match="y is a masked array"):
        clf.fit(X, np.ma.masked_equal(Y, 1))


def test_arrays_of_dates_raise():
    days = np.arange(2 * N).reshape(N, 2).astype("datetime64[D]")
    for X in (days, days - days[0], days.astype(object)):
        with pytest.raises(InvalidInputError, match="dates"):
            fitted(X, Y)


@pytest.mark.parametrize("unit", [1e6, 1e20, 3e38])
def test_huge_values_count_as_outliers(unit):
    X = RNG.normal(size=(N, 2))
    clf = fitted(X, Y)
    proba = clf.predict_proba(np.array([[unit, 0], [-unit, 0], [1e5, 0], [-1e5, 0]]))
    np.testing.assert_allclose(proba[:2], proba[2:], atol=1e-3)


# Frames -------------------------------------------------------------------------------


def test_rows_of_weight_zero_do_not_decide_the_encoding():
    frame = pd.DataFrame({"a": RNG.normal(size=N), "c": ["x", "y"] * (N // 2)})
    other = frame.copy()
    other.loc[:4, "a"], other.loc[:4, "c"] = 1e6, "z"
    weight = np.arange(N) > 4
    clf = DeepEnsembleClassifier(**FEW).fit(other, Y, sample_weight=weight)
    assert clf.input_format_ == fitted(frame[5:], Y[5:]).input_format_


def test_other_names_of_integers_raise():
    frame = pd.DataFrame(RNG.normal(size=(N, 2))).assign(c="x").rename(columns=str)
    frame.columns = [0, 1, 2]
    clf = fitted(frame, Y)
    with pytest.raises(InvalidInputError, match="no columns '0'"):
        clf.predict(frame.rename(columns={0: 5}))


def test_a_column_of_dates_as_text_is_named():
    days = pd.date_range("2020-01-01", periods=N).strftime("%Y-%m-%d")
    with pytest.warns(SharpBalanceWarning, match="'when'.*dates"):
        fitted(pd.DataFrame({"a": RNG.normal(size=N), "when": days}), Y)


# Shapes and settings without effect --------------------------------------------------

PICTURES = RNG.normal(size=(N, 8, 8)).astype(np.float32)
TABLE = PICTURES[:, 0]


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharpBalanceWarning)
        yield


OWN = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
ITEMS = TensorDataset(torch.as_tensor(PICTURES), torch.as_tensor(Y))
WARNS = [
    ({}, PICTURES, "channel axis"),
    ({}, ITEMS, "channel axis"),
    ({"precision": "fp16"}, TABLE, "fp16"),
]
QUIET = [
    ({}, PICTURES[:, None]),
    ({}, PICTURES.reshape(N, -1)),
    ({"estimator": OWN}, PICTURES),
    ({}, np.uint8(PICTURES > 0)),
    ({}, PICTURES[:, :3]),  # short sequences
]


@pytest.mark.parametrize(("params", "X", "name"), WARNS)
@pytest.mark.parametrize("kind", KINDS)
def test_settings_without_effect_and_ambiguous_shapes_warn(kind, params, X, name):
    if not params.keys() <= kind().get_params().keys():
        pytest.skip("not a parameter of this ensemble")
    with pytest.warns(SharpBalanceWarning, match=name):
        kind(**FEW | {"n_estimators": 2} | params).fit(X, None if X is ITEMS else Y)


@pytest.mark.parametrize(("params", "X"), QUIET)
def test_other_settings_do_not_warn(params, X, no_warnings):
    DeepEnsembleClassifier(**FEW | params).fit(X, Y)
