"""The same samples give the same ensemble in every container."""

import warnings
from itertools import product

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SmallCNN,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.arrays import dataset_labels
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from tests.cases import assert_same_members, global_generators, rest_slow

N = 48
SMALL = {
    "n_estimators": 2,
    "max_epochs": 2,
    "batch_size": 24,
    "random_state": 0,
    "device": "cpu",
}
TABLE = {**SMALL, "estimator__module__hidden": (8,)}
PICTURES = {**SMALL, "estimator": SmallCNN, "train_transform": "crop_flip"}
PICTURES["estimator__module__width"] = 4


def table():
    """Values that are exact in float32."""
    rng = np.random.default_rng(0)
    X = rng.integers(-8, 8, size=(N, 4)) / 4
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)


def pictures(channels=3):
    """uint8 of shape (N, H, W, C)."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=N)
    X = rng.integers(0, 120, size=(N, 9, 8, channels)) + 100 * y[:, None, None, None]
    return X.astype(np.uint8), y


def assert_same_model(one, other):
    assert_same_members(one, other)
    np.testing.assert_array_equal(one.sharpness_, other.sharpness_)
    np.testing.assert_array_equal(one.sam_masks_, other.sam_masks_)


# Tables -----------------------------------------------------------------------------


def as_pandas(X):
    return pd.DataFrame(X, columns=list("abcd"))


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


def mirrored_view(X):
    """The same values behind negative strides."""
    return X[::-1, ::-1].copy()[::-1, ::-1]


TABLES = {
    "float32": lambda X: X.astype(np.float32),
    "fortran": np.asfortranarray,
    "list": lambda X: X.tolist(),
    "negative strides": mirrored_view,
    "read-only": read_only,
    "tensor": torch.tensor,
    "tensor with gradient": lambda X: torch.tensor(X, requires_grad=True),
}


@pytest.fixture(scope="module")
def want():
    """Return the ensemble that is fitted on an array."""
    return SharpBalance(**TABLE).fit(*table())


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_all_kinds(kind, want):
    X, y = table()
    given = TABLES[kind](X)
    clf = SharpBalance(**TABLE).fit(given, y)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(given), want.predict_proba(X))
    assert clf.n_features_in_ == 4
    assert clf.score(given, y) == want.score(X, y)


@pytest.fixture(scope="module")
def of_zeros_and_ones():
    X, y = table()
    return SharpBalance(**TABLE).fit((X > 0).astype(np.float64), y)


@pytest.mark.parametrize("dtype", rest_slow([np.uint8, np.int64, bool, np.int8], 3))
def test_tables_of_whole_numbers(dtype, of_zeros_and_ones):
    X, y = table()
    clf = SharpBalance(**TABLE).fit((X > 0).astype(dtype), y)
    assert_same_model(clf, of_zeros_and_ones)


def test_columns_that_float32_rounds_away_give_a_warning():
    """The warning names the columns; float32 input gives none."""
    X, y = table()
    X[:, [1, 3]] += 1e8
    clf = SharpBalance(**TABLE)
    with pytest.warns(SharpBalanceWarning, match=r"rounds 2 column.*mean: 1, 3\. Cent"):
        clf.fit(X, y)
    with pytest.warns(SharpBalanceWarning, match="'b', 'd'"):
        clf.fit(as_pandas(X), y)
    with pytest.warns(SharpBalanceWarning, match=r"mean: 1, 3\."):
        clf.fit(Pairs(X, y))
    remedy = make_pipeline(StandardScaler(), clone(clf))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharpBalanceWarning)
        clf.fit(X.astype(np.float32), y)
        # Integers that are exact in float32, and rounding below the deviation.
        clf.fit(np.where(X > 0, 2.0**25, 2.0**25 + 4), y)
        clf.fit(table()[0] * 1e6 + 1e8, y)
        remedy.fit(X, y)
    want = make_pipeline(StandardScaler(), clone(clf)).fit(table()[0], y)
    np.testing.assert_allclose(
        remedy.predict_proba(X), want.predict_proba(table()[0]), atol=1e-3
    )


@pytest.mark.parametrize("layout", ["table", "pictures", "dataset"])
def test_statistics_are_weighted(layout):
    X, y = table()
    X = X.astype(np.float32)
    if layout == "pictures":
        X = np.tile(X[:, :1, None, None], (1, 3, 9, 8)) + np.arange(72).reshape(9, 8)
    weight = np.random.default_rng(0).integers(0, 4, N)
    weight[0], X[0] = 0, 1e7  # a large number of weight zero
    repeated = np.repeat(X, weight, axis=0).astype(np.float64)
    options = {**(PICTURES if layout == "pictures" else TABLE), "max_epochs": 1}
    given = (tensors(X, y),) if layout == "dataset" else (X, y)
    clf = DeepEnsembleClassifier(**options).fit(*given, sample_weight=weight)
    module = clf.estimators_[0].module_
    if layout == "pictures":
        center, scale = repeated.mean((0, 2, 3)), repeated.std((0, 2, 3))
    else:
        cuts = [0.25, 0.5, 0.75]
        first, center, third = np.quantile(repeated, cuts, 0, method="inverted_cdf")
        scale = (third - first) / 1.349
    np.testing.assert_allclose(module.mean.flatten(), center, rtol=1e-6)
    np.testing.assert_allclose(module.scale.flatten(), scale, rtol=1e-6)


# Labels -----------------------------------------------------------------------------

LABELS = {
    "strings": np.array(["ant", "bee", "cat"]),
    "floats": np.array([-1.0, 0.0, 7.0]),
    "gaps": np.array([-5, 3, 100]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_all_kinds(kind, want):
    X, codes = table()
    names = LABELS[kind]
    clf = SharpBalance(**TABLE).fit(X, names[codes])
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.classes_, names)
    np.testing.assert_array_equal(clf.predict(X), names[want.predict(X)])
    assert clf.predict(X).dtype == clf.classes_.dtype


CONTAINERS = {
    "list": list,
    "tensor": torch.tensor,
    "series": pd.Series,
    "categorical": lambda y: pd.Series(pd.Categorical(y)),
    "polars": pl.Series,
    "negative strides": lambda y: y[::-1].copy()[::-1],
    "uint8": lambda y: y.astype(np.uint8),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_labels_in_all_containers(kind, want):
    X, y = table()
    given = CONTAINERS[kind](y)
    clf = SharpBalance(**TABLE).fit(X, given)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict(X), want.predict(X))


@pytest.mark.parametrize("container", rest_slow([torch.tensor, list, read_only], 2))
def test_weights_in_all_containers(container):
    X, y = table()
    weight = np.arange(N) % 3 + 1.0
    want = SharpBalance(**TABLE).fit(X, y, sample_weight=weight)
    clf = SharpBalance(**TABLE).fit(X, y, sample_weight=container(weight))
    assert_same_model(clf, want)


# Pictures ---------------------------------------------------------------------------

LAYOUTS = {
    "NCHW": lambda X: np.ascontiguousarray(X.transpose(0, 3, 1, 2)),
    "NCHW view": lambda X: X.transpose(0, 3, 1, 2),
    "negative strides": lambda X: X[:, ::-1].copy()[:, ::-1],
    "read-only": read_only,
    "tensor": lambda X: torch.tensor(X),
}


@pytest.fixture(scope="module")
def of_pictures():
    """Return the ensemble that is fitted on pictures with channels last."""
    return SharpBalance(**PICTURES).fit(*pictures())


@pytest.mark.parametrize("layout", rest_slow(LAYOUTS, ["NCHW", "negative strides"]))
def test_pictures_in_any_layout(layout, of_pictures):
    X, y = pictures()
    given = LAYOUTS[layout](X)
    clf = SharpBalance(**PICTURES).fit(given, y)
    assert_same_model(clf, of_pictures)
    want = of_pictures.predict_proba(X)
    np.testing.assert_array_equal(clf.predict_proba(given), want)
    # Prediction uses the layout of its own samples.
    np.testing.assert_array_equal(clf.predict_proba(X), want)
    np.testing.assert_array_equal(of_pictures.predict_proba(given), want)


def test_grey_pictures_with_and_without_a_channel():
    X, y = pictures(channels=1)
    fitted = [
        SharpBalance(**PICTURES).fit(given, y)
        for given in (X, X[..., 0], X.transpose(0, 3, 1, 2))
    ]
    assert_same_model(fitted[0], fitted[1])
    assert_same_model(fitted[0], fitted[2])
    np.testing.assert_array_equal(
        fitted[1].predict_proba(X[..., 0]), fitted[0].predict_proba(X)
    )


def test_uint8_and_float_pictures_give_the_same_result():
    X, y = pictures()
    same = {"estimator": SmallCNN, "lr": 0.1, "lr_schedule": "cosine", **SMALL}
    floats = SharpBalance(**same).fit(X / 255, y)
    integers = SharpBalance(**same).fit(X, y)
    np.testing.assert_allclose(
        floats.predict_proba(X / 255), integers.predict_proba(X), atol=1e-3
    )


def test_a_sequence_is_one_sample():
    X = np.random.default_rng(0).normal(size=(N, 6, 5))
    y = (X[:, 0, 0] > 0).astype(int)
    clf = SharpBalance(**TABLE).fit(X, y)
    assert clf.predict_proba(X).shape == (N, 2)
    flat = SharpBalance(**TABLE).fit(X.reshape(N, -1), y)
    np.testing.assert_allclose(
        clf.predict_proba(X), flat.predict_proba(X.reshape(N, -1)), rtol=1e-4
    )


class Elsewhere(torch.Tensor):
    """A tensor that numpy cannot read before a copy to the CPU, as one on a GPU."""

    def __array__(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    numpy = __array__

    def cpu(self):
        return self.as_subclass(torch.Tensor)


PLACES = {
    "elsewhere": lambda v: torch.tensor(v).as_subclass(Elsewhere),
    "in a graph": lambda v: torch.tensor(v, dtype=torch.float32, requires_grad=True),
    "cuda": lambda v: torch.tensor(v, device="cuda"),
}


@pytest.mark.parametrize(
    "place",
    [pytest.param(p, marks=pytest.mark.gpu) if p == "cuda" else p for p in PLACES],
)
def test_labels_on_a_device_are_copied(place, want):
    X, y = table()
    move = PLACES[place]
    clf = SharpBalance(**TABLE).fit(move(X), move(y))
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.classes_, [0, 1, 2])
    dataset = Pairs(X, y)
    dataset.targets = move(y)
    np.testing.assert_array_equal(dataset_labels(dataset), y)


# Datasets ---------------------------------------------------------------------------


class Pairs(Dataset):
    """A Dataset without an attribute for its labels."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.X[i], self.y[i]


class WithTargets(Pairs):
    @property
    def targets(self):
        return list(self.y)


def tensors(X, y):
    return TensorDataset(torch.tensor(X), torch.tensor(y))


def subset(X, y):
    """A Subset of a larger Dataset in another order."""
    order = np.random.default_rng(3).permutation(2 * N)
    everything = np.concatenate([X, X])[order], np.concatenate([y, y])[order]
    place = np.argsort(order)[:N]
    return Subset(tensors(*everything), place.tolist())


def joined(X, y):
    return ConcatDataset([tensors(X[:10], y[:10]), tensors(X[10:], y[10:])])


DATASETS = {
    "tensors": tensors,
    "subset": subset,
    "pairs": Pairs,
    "targets": WithTargets,
    "joined": joined,
}


HELD_OUT = {"engine": "skorch", "validation_fraction": 0.25, **TABLE}


@pytest.fixture(scope="module")
def with_held_out():
    """Return the ensemble that is fitted on a part of an array."""
    X, y = table()
    return SharpBalance(**HELD_OUT).fit(X.astype(np.float32), y)


@pytest.mark.parametrize("kind", DATASETS)
def test_a_dataset_equals_an_array_of_its_samples(kind, with_held_out):
    X, y = table()
    X, want = X.astype(np.float32), with_held_out
    dataset = DATASETS[kind](X, y)
    clf = SharpBalance(**HELD_OUT).fit(dataset)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(dataset), want.predict_proba(X))
    np.testing.assert_array_equal(clf.classes_, want.classes_)
    assert clf.score(dataset) == want.score(X, y)
    assert [row["valid_acc"] for row in clf.history_[0]] == [
        row["valid_acc"] for row in want.history_[0]
    ]


OTHER_FLOATS = [(np.float64, "auto"), (np.float16, "skorch")]


@pytest.mark.parametrize(
    ("dtype", "engine"),
    rest_slow(product([np.float64, np.float16], ["auto", "skorch"]), OTHER_FLOATS),
)
def test_a_dataset_of_other_floats(dtype, engine):
    X, y = table()
    options = {"engine": engine, "validation_fraction": 0.25, **TABLE}
    want = SharpBalance(**options).fit(tensors(X.astype(np.float32), y))
    clf = SharpBalance(**options).fit(tensors(X.astype(dtype), y))
    assert_same_model(clf, want)
    other = Pairs(X.astype(dtype), y)
    np.testing.assert_array_equal(clf.predict_proba(other), want.predict_proba(X))


class Bare(Pairs):
    """Items without labels."""

    def __getitem__(self, i):
        return self.X[i]


def test_a_dataset_without_labels_is_predicted(want):
    X, y = table()
    clf = want
    bare = Bare(X.astype(np.float32), y)
    np.testing.assert_array_equal(clf.predict_proba(bare), clf.predict_proba(X))
    np.testing.assert_array_equal(clf.predict(Subset(bare, [3])), clf.predict(X[3:4]))
    assert clf.score(bare, y) == clf.score(X, y)
    with pytest.raises(InvalidInputError, match="items of Bare have no labels"):
        clf.score(bare)
    with pytest.raises(InvalidInputError, match="without labels cannot be fitted"):
        SharpBalance(**TABLE).fit(bare, y)


@pytest.mark.parametrize(
    "kind", [SharpBalance, DeepEnsembleClassifier, DiversifiedEnsembleClassifier]
)
def test_a_dataset_does_not_change_the_global_generators(kind):
    X, y = table()
    dataset = tensors(X.astype(np.float32), y)
    clf = kind(**TABLE, validation_fraction=0.25)
    before = global_generators()
    clf.fit(dataset)
    assert global_generators() == before
    clf.predict_proba(dataset)
    clf.score(dataset)
    assert global_generators() == before


class Draws(Pairs):
    """Items with noise from a given generator."""

    def __init__(self, X, y, draw):
        super().__init__(X, y)
        self.draw = draw

    def __getitem__(self, i):
        x, label = super().__getitem__(i)
        return x + np.float32(self.draw()), label


RANDOM_FITS = {
    "plain": {},
    "averaged": {"weight_averaging": "uniform"},
    "soup": {"aggregation": "greedy_soup"},
    "stopping": {"early_stopping": 2},
}


def noise():
    return torch.randn(()).item()


@pytest.mark.parametrize("case", rest_slow(RANDOM_FITS, ["soup", "stopping"]))
def test_random_items_depend_on_random_state_only(case):
    X, y = table()
    dataset = Draws(X.astype(np.float32), y, noise)

    def fit():
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        clf = SharpBalance(net, validation_fraction=0.25, **SMALL)
        before = global_generators()
        clf.set_params(**RANDOM_FITS[case]).fit(dataset)
        assert global_generators() == before
        return clf

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = fit()
        torch.manual_seed(2)
        second = fit()
    assert_same_model(first, second)
    if case == "stopping":
        np.testing.assert_array_equal(
            first.validation_scores_, second.validation_scores_
        )


def test_labels_may_be_passed_in_addition_to_a_dataset():
    X, y = table()
    names = np.array(["ant", "bee", "cat"])[y]
    dataset = tensors(X.astype(np.float32), np.zeros(N, dtype=int))
    clf = SharpBalance(engine="skorch", **TABLE).fit(dataset, names)
    want = SharpBalance(engine="skorch", **TABLE).fit(X, names)
    assert_same_model(clf, want)
    assert clf.score(dataset, names) == want.score(X, names)


def test_loader_settings_are_used(tmp_path):
    """A worker process reads the items, as in any skorch net."""
    X, y = table()

    def touch(worker):
        (tmp_path / str(worker)).touch()

    clf = DeepEnsembleClassifier(
        estimator__iterator_train__num_workers=1,
        estimator__iterator_train__worker_init_fn=touch,
        **{**TABLE, "n_estimators": 1, "max_epochs": 1},
    )
    clf.fit(Pairs(X.astype(np.float32), y))
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


# Dictionaries -----------------------------------------------------------------------


class Two(nn.Module):
    """Numbers and a category."""

    def __init__(self, n_classes):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.head = nn.Linear(8, n_classes)

    def forward(self, numbers, kind):
        return self.head(torch.cat([numbers, self.embedding(kind)], dim=1))


def two_inputs():
    X, y = table()
    return {"numbers": X, "kind": np.arange(N) % 3}, y


DICTIONARIES = {
    "tensors": torch.tensor,
    "negative strides": lambda v: v[::-1].copy()[::-1],
    "read-only": read_only,
    "lists": lambda v: v.tolist(),
}


@pytest.fixture(scope="module")
def of_arrays():
    """Return the ensemble that is fitted on a dictionary of arrays."""
    return SharpBalance(Two, validation_fraction=0.25, **SMALL).fit(*two_inputs())


@pytest.mark.parametrize("kind", DICTIONARIES)
def test_a_dictionary_is_passed_to_the_module_by_keyword(kind, of_arrays):
    X, y = two_inputs()
    want = of_arrays
    given = {key: DICTIONARIES[kind](value) for key, value in X.items()}
    clf = SharpBalance(Two, validation_fraction=0.25, **SMALL).fit(given, y)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(given), want.predict_proba(X))
    reordered = dict(reversed(given.items()))
    np.testing.assert_array_equal(clf.predict(reordered), want.predict(X))


class Pooled(nn.Module):
    """Takes sequences of any length with a fixed number of features."""

    def __init__(self, n_classes):
        super().__init__()
        self.head = nn.Linear(4, n_classes)

    def forward(self, x):
        return self.head(x.mean(1))


def test_a_dictionary_may_have_other_lengths_but_no_other_widths():
    X, y = table()
    X = np.repeat(X[:, None], 3, axis=1)
    clf = DeepEnsembleClassifier(Pooled, **SMALL).fit({"x": X}, y)
    np.testing.assert_allclose(
        clf.predict_proba({"x": X[:, :2]}), clf.predict_proba({"x": X}), rtol=1e-5
    )
    with pytest.raises(
        InvalidInputError,
        match=r"'x' of shape \(3, 2\), but .* fitted on a dictionary of 'x' of shape "
        r"\(3, 4\)",
    ):
        clf.predict({"x": X[..., :2]})


def test_feature_names_of_an_earlier_fit_are_removed():
    X, y = table()
    frame = pd.DataFrame(X, columns=list("abcd"))
    data = TensorDataset(torch.tensor(X), torch.tensor(y))
    for given, labels in (({"input": X}, y), (data, None)):
        params = {**SMALL, "n_buffer": 0}
        clf = DeepEnsembleClassifier(nn.Linear(4, 3), **params).fit(frame, y)
        clf.fit(given, labels)
        assert not hasattr(clf, "feature_names_in_")
        assert not hasattr(clf, "n_features_in_")
        clf.predict(given)


class WorksInPlace(nn.Module):
    """Changes its input in place."""

    def __init__(self, in_place=True):
        super().__init__()
        self.in_place = in_place
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        x = x.mul_(3).sub_(1) if self.in_place else x * 3 - 1
        return self.linear(x)


@pytest.mark.parametrize("as_dict", [False, True])
def test_modules_may_work_in_place_on_their_input(as_dict):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    given = {"x": X} if as_dict else X
    before, scores, probabilities = X.copy(), [], []
    for in_place in (True, False):
        clf = SharpBalance(
            WorksInPlace,
            estimator__module__in_place=in_place,
            standardize=False,
            n_estimators=2,
            max_epochs=4,
            random_state=0,
        ).fit(given, y)
        scores.append(clf.sharpness_)
        probabilities.append(clf.predict_proba(given))
        np.testing.assert_array_equal(X, before)
    np.testing.assert_allclose(*scores, rtol=1e-4)
    np.testing.assert_allclose(*probabilities, rtol=1e-4)
