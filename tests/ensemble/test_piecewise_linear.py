"""Piecewise linear inputs of the default network for tables."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier, load
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.input_statistics import PIECES, n_pieces
from sklearn_sharpbalance.data.inputs import InputFormat
from tests.cases import KINDS, SMALL, rest_slow

FEW = SMALL | {"max_epochs": 2, "batch_size": 100}
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 2))
y = (np.floor(3 * X[:, 0]) % 2).astype(int)  # stripes
FRAME = pd.DataFrame(
    {"a": X[:, 0], "city": np.tile(["Bonn", "Ulm"], 200), "b": X[:, 1]}
)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_numbers_have_more_inputs(kind):
    """Pieces between quantiles of each column, and steps where the classes change."""
    clf = kind(**FEW).fit(X, y)
    column, low, slope = clf.estimators_[0].module_.pieces
    assert column[: 2 * PIECES].tolist() == [0] * PIECES + [1] * PIECES
    assert set(column[2 * PIECES :].tolist()) == {0}  # the other column is noise
    mean, scale = (getattr(clf.estimators_[0].module_, k)[0] for k in ("mean", "scale"))
    steps = (low + 0.5 / slope)[2 * PIECES :] * scale + mean
    for edge in (-2 / 3, -1 / 3, 0, 1 / 3, 2 / 3):
        assert (steps - edge).abs().min() < 0.02
    assert clf.n_features_in_ == 2


def test_categories_have_no_more_inputs():
    clf = SharpBalance(**FEW).fit(FRAME, y)
    width = clf.member_inputs(FRAME).shape[1]
    net = clf.estimators_[0].module_
    seen = net.standardize(torch.as_tensor(clf.member_inputs(FRAME)))
    assert seen.shape == (400, width + net.pieces.shape[1])
    is_code = clf.input_format_.columns.is_code
    assert set(net.pieces[0].tolist()) == set(np.flatnonzero(~is_code))


@pytest.mark.parametrize(
    ("rows", "params"),
    [
        (slice(150), {}),  # 75 rows for each column
        (slice(400), {"estimator": MLP}),
        (slice(400), {"standardize": False}),
    ],
)
def test_other_fits_have_no_more_inputs(rows, params):
    clf = SharpBalance(**{**FEW, **params}).fit(X[rows], y[rows])
    assert clf.estimators_[0].module_.pieces is None


def test_large_tables_are_not_encoded():
    table = InputFormat("table", (5,), (5,))
    assert n_pieces(table, 800_000) == 5 * PIECES
    assert n_pieces(table, 900_000) == 0  # 0.3 GB
    assert n_pieces(InputFormat("array", (5, 5), (5, 5)), 10_000) == 0


def test_stripes_are_learned():
    """Without the encoding the accuracy is 0.7."""
    large = np.random.default_rng(1).uniform(-1, 1, (3000, 2))
    stripes = (np.floor(6 * large[:, 0]) % 2).astype(int)
    clf = DeepEnsembleClassifier(n_estimators=2, random_state=0, device="cpu")
    clf.fit(large[:2000], stripes[:2000])
    assert clf.score(large[2000:], stripes[2000:]) > 0.95


@pytest.mark.parametrize("data", rest_slow([FRAME, X]), ids=["frame", "array"])
def test_engines_agree(data):
    stacked, skorch = (
        SharpBalance(**FEW, engine=engine).fit(data, y)
        for engine in ("stacked", "skorch")
    )
    np.testing.assert_allclose(
        stacked.predict_proba(data), skorch.predict_proba(data), atol=1e-4
    )


@pytest.mark.parametrize("data", rest_slow([FRAME, X]), ids=["frame", "array"])
def test_fitted_models_are_restored(data, tmp_path):
    clf = SharpBalance(**FEW).fit(data, y)
    expected = clf.predict_proba(data)
    clf.save(tmp_path / "model")
    for restored in (
        pickle.loads(pickle.dumps(clf)),
        load(tmp_path / "model"),
        clone(clf).fit(data, y),
    ):
        np.testing.assert_array_equal(restored.predict_proba(data), expected)
    clf.export_torch(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    inputs = torch.as_tensor(clf.member_inputs(data))
    np.testing.assert_allclose(program(inputs).numpy(), expected, atol=1e-6)


def test_partial_fit_keeps_the_encoding():
    clf = DeepEnsembleClassifier(**{**FEW, "max_epochs": None})
    clf.partial_fit(X, y)
    first = clf.estimators_[0].module_.pieces.clone()
    clf.partial_fit(X[:20] + 1, y[:20])
    assert torch.equal(clf.estimators_[0].module_.pieces, first)


def test_weights_count_as_repeated_rows():
    weight = RNG.integers(1, 3, len(X))
    weighted = DeepEnsembleClassifier(**FEW).fit(X, y, sample_weight=weight)
    repeated = DeepEnsembleClassifier(**FEW).fit(
        np.repeat(X, weight, axis=0), np.repeat(y, weight)
    )
    torch.testing.assert_close(
        *(clf.estimators_[0].module_.pieces for clf in (weighted, repeated))
    )
