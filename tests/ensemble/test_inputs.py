"""Whatever holds the samples, the same samples give the same ensemble."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance

N = 48
SMALL = {
    "n_estimators": 2,
    "max_epochs": 3,
    "batch_size": 16,
    "random_state": 0,
    "device": "cpu",
}
TABLE = {**SMALL, "estimator__module__hidden": (8,)}
PICTURES = {**SMALL, "estimator__module__width": 4}


def table():
    """Values that float32 holds exactly."""
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
    for mine, theirs in zip(one.estimators_, other.estimators_):
        state, twin = mine.module_.state_dict(), theirs.module_.state_dict()
        assert all(value.equal(twin[key]) for key, value in state.items())
    np.testing.assert_array_equal(one.sharpness_, other.sharpness_)
    np.testing.assert_array_equal(one.sam_masks_, other.sam_masks_)


# Tables -----------------------------------------------------------------------------


def as_pandas(X):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(X, columns=list("abcd"))


def as_polars(X):
    polars = pytest.importorskip("polars")
    return polars.DataFrame(X, schema=list("abcd"))


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


def mirrored_view(X):
    """The same values behind negative strides."""
    return X[::-1, ::-1].copy()[::-1, ::-1]


TABLES = {
    "float32": lambda X: X.astype(np.float32),
    "float64": lambda X: X,
    "fortran": np.asfortranarray,
    "list": lambda X: X.tolist(),
    "negative strides": mirrored_view,
    "pandas": as_pandas,
    "polars": as_polars,
    "read-only": read_only,
    "tensor": torch.tensor,
    "tensor with gradient": lambda X: torch.tensor(X, requires_grad=True),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_all_kinds(kind):
    X, y = table()
    want = SharpBalance(**TABLE).fit(X, y)
    given = TABLES[kind](X)
    clf = SharpBalance(**TABLE).fit(given, y)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(given), want.predict_proba(X))
    assert clf.n_features_in_ == 4
    assert clf.score(given, y) == want.score(X, y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, bool])
def test_tables_of_whole_numbers(dtype):
    X, y = table()
    X = (X > 0).astype(dtype)
    want = SharpBalance(**TABLE).fit(X.astype(np.float64), y)
    assert_same_model(SharpBalance(**TABLE).fit(X, y), want)


@pytest.mark.parametrize("frame", [as_pandas, as_polars])
def test_frames_leave_their_names(frame):
    X, y = table()
    clf = SharpBalance(**TABLE).fit(frame(X), y)
    assert clf.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(frame(X)[["b", "a", "c", "d"]])


def test_no_input_is_written_to():
    X, y = table()
    kept = X.copy(), y.copy()
    SharpBalance(**TABLE).fit(X, y).predict(X)
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(y, kept[1])


def test_huge_tiny_and_constant_columns():
    X, y = table()
    X = np.column_stack([X * [1e6, 1e-6, 1, 1] + [1e3, 0, 0, 0], np.full(N, 7.0)])
    clf = SharpBalance(**{**TABLE, "max_epochs": 20}).fit(X, y)
    assert np.isfinite(clf.predict_proba(X)).all()
    assert clf.score(X, y) > 0.9


def test_without_standardisation_the_network_sees_raw_values():
    X, y = table()
    raw = SharpBalance(standardize=False, **TABLE).fit(X, y)
    assert raw.estimators_[0].module_.mean is None
    done = SharpBalance(**TABLE).fit(X, y).estimators_[0].module_
    np.testing.assert_allclose(done.mean, X.mean(0), rtol=1e-6)
    np.testing.assert_allclose(done.scale, X.std(0), rtol=1e-6)


# Labels -----------------------------------------------------------------------------

LABELS = {
    "strings": np.array(["ant", "bee", "cat"]),
    "objects": np.array(["ant", "bee", "cat"], dtype=object),
    "floats": np.array([-1.0, 0.0, 7.0]),
    "gaps": np.array([-5, 3, 100]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_all_kinds(kind):
    X, codes = table()
    want = SharpBalance(**TABLE).fit(X, codes)
    names = LABELS[kind]
    clf = SharpBalance(**TABLE).fit(X, names[codes])
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.classes_, names)
    np.testing.assert_array_equal(clf.predict(X), names[want.predict(X)])
    assert clf.predict(X).dtype == clf.classes_.dtype


def test_two_classes_of_truth_values():
    X, codes = table()
    clf = SharpBalance(**TABLE).fit(X, codes > 0)
    assert clf.predict(X).dtype == bool


def holders():
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    return {
        "list": list,
        "tensor": torch.tensor,
        "series": pandas.Series,
        "categorical": lambda y: pandas.Series(pandas.Categorical(y)),
        "polars": polars.Series,
        "negative strides": lambda y: y[::-1].copy()[::-1],
        "uint8": lambda y: y.astype(np.uint8),
    }


@pytest.mark.parametrize("kind", holders())
def test_whatever_holds_the_labels(kind):
    X, y = table()
    want = SharpBalance(**TABLE).fit(X, y)
    given = holders()[kind](y)
    clf = SharpBalance(**TABLE).fit(X, given)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict(X), want.predict(X))


@pytest.mark.parametrize("holder", [list, torch.tensor, read_only])
def test_whatever_holds_the_weights(holder):
    X, y = table()
    weight = np.arange(N) % 3 + 1.0
    want = SharpBalance(**TABLE).fit(X, y, sample_weight=weight)
    clf = SharpBalance(**TABLE).fit(X, y, sample_weight=holder(weight))
    assert_same_model(clf, want)


# Pictures ---------------------------------------------------------------------------

LAYOUTS = {
    "NCHW": lambda X: np.ascontiguousarray(X.transpose(0, 3, 1, 2)),
    "NCHW view": lambda X: X.transpose(0, 3, 1, 2),
    "negative strides": lambda X: X[:, ::-1].copy()[:, ::-1],
    "read-only": read_only,
    "tensor": lambda X: torch.tensor(X),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_in_any_layout(layout):
    X, y = pictures()
    want = SharpBalance(**PICTURES).fit(X, y)
    given = LAYOUTS[layout](X)
    clf = SharpBalance(**PICTURES).fit(given, y)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(given), want.predict_proba(X))
    # The layout is that of the samples, not that of the fit.
    np.testing.assert_array_equal(clf.predict_proba(X), want.predict_proba(given))


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


def test_bytes_and_floats_of_the_same_pictures_agree():
    X, y = pictures()
    bytes_ = SharpBalance(**PICTURES).fit(X, y)
    floats = SharpBalance(**PICTURES).fit(X / 255, y)
    np.testing.assert_allclose(
        floats.predict_proba(X / 255), bytes_.predict_proba(X), atol=1e-3
    )


def test_channels_are_standardised_one_by_one():
    X, y = pictures()
    module = SharpBalance(**PICTURES).fit(X, y).estimators_[0].module_
    np.testing.assert_allclose(module.mean.flatten(), X.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(module.scale.flatten(), X.std((0, 1, 2)), rtol=1e-5)


def test_sequences_are_one_sample_each():
    X = np.random.default_rng(0).normal(size=(N, 6, 5))
    y = (X[:, 0, 0] > 0).astype(int)
    clf = SharpBalance(**TABLE).fit(X, y)
    assert clf.predict_proba(X).shape == (N, 2)
    flat = SharpBalance(**TABLE).fit(X.reshape(N, -1), y)
    np.testing.assert_allclose(
        clf.predict_proba(X), flat.predict_proba(X.reshape(N, -1)), rtol=1e-4
    )


# Datasets ---------------------------------------------------------------------------


class Pairs(Dataset):
    """Publishes nothing but its items."""

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
    """The right samples, picked out of a larger set in another order."""
    order = np.random.default_rng(3).permutation(2 * N)
    everything = np.concatenate([X, X])[order], np.concatenate([y, y])[order]
    place = np.argsort(order)[:N]
    return Subset(tensors(*everything), place.tolist())


def joined(X, y):
    return ConcatDataset([tensors(X[:10], y[:10]), tensors(X[10:], y[10:])])


DATASETS = {
    "tensors": tensors,
    "subset": subset,
    "subset of a subset": lambda X, y: Subset(subset(X, y), range(N)),
    "pairs": Pairs,
    "targets": WithTargets,
    "joined": joined,
}


@pytest.mark.parametrize("kind", DATASETS)
def test_a_dataset_is_its_samples(kind):
    X, y = table()
    X = X.astype(np.float32)
    options = {"engine": "skorch", "validation_fraction": 0.25, **TABLE}
    want = SharpBalance(**options).fit(X, y)
    dataset = DATASETS[kind](X, y)
    clf = SharpBalance(**options).fit(dataset)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(dataset), want.predict_proba(X))
    np.testing.assert_array_equal(clf.classes_, want.classes_)
    assert clf.score(dataset) == want.score(X, y)
    assert [row["valid_acc"] for row in clf.history_[0]] == [
        row["valid_acc"] for row in want.history_[0]
    ]


def test_labels_can_be_given_beside_a_dataset():
    X, y = table()
    names = np.array(["ant", "bee", "cat"])[y]
    dataset = tensors(X.astype(np.float32), np.zeros(N, dtype=int))
    clf = SharpBalance(engine="skorch", **TABLE).fit(dataset, names)
    want = SharpBalance(engine="skorch", **TABLE).fit(X, names)
    assert_same_model(clf, want)
    assert clf.score(dataset, names) == want.score(X, names)


def test_a_dataset_of_pictures_in_folders(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    from PIL import Image
    from torchvision.transforms import v2

    X, y = pictures()
    for i, (picture, label) in enumerate(zip(X, y)):
        folder = tmp_path / ("night", "day")[label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture).save(folder / f"{i:03}.png")
    folders = torchvision.datasets.ImageFolder(tmp_path, transform=v2.PILToTensor())
    clf = SharpBalance(**PICTURES).fit(folders)
    order = [int(path.rpartition("/")[2][:3]) for path, _ in folders.samples]
    want = SharpBalance(**PICTURES).fit(X[order], 1 - y[order])  # day comes first
    assert_same_model(clf, want)
    assert clf.score(folders) == want.score(X[order], 1 - y[order])
    np.testing.assert_array_equal(
        clf.predict_proba(folders), want.predict_proba(X[order])
    )


def test_settings_of_the_loader_reach_it():
    """A ``collate_fn`` for training, as in any skorch net."""
    X, y = table()
    seen = []

    def collate(items):
        seen.append(len(items))
        return torch.utils.data.default_collate(items)

    clf = DeepEnsembleClassifier(estimator__iterator_train__collate_fn=collate, **TABLE)
    clf.fit(Pairs(X.astype(np.float32), y))
    assert seen == [16] * (2 * 3 * 3)  # members, epochs, batches


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
    "arrays": lambda v: v,
    "tensors": torch.tensor,
    "negative strides": lambda v: v[::-1].copy()[::-1],
    "read-only": read_only,
    "lists": lambda v: v.tolist(),
}


@pytest.mark.parametrize("kind", DICTIONARIES)
def test_a_dictionary_reaches_the_module_by_name(kind):
    X, y = two_inputs()
    options = {"validation_fraction": 0.25, **SMALL}
    want = SharpBalance(Two, **options).fit(X, y)
    given = {key: DICTIONARIES[kind](value) for key, value in X.items()}
    clf = SharpBalance(Two, **options).fit(given, y)
    assert_same_model(clf, want)
    np.testing.assert_array_equal(clf.predict_proba(given), want.predict_proba(X))
    reordered = dict(reversed(given.items()))
    np.testing.assert_array_equal(clf.predict(reordered), want.predict(X))


def test_a_dictionary_is_learned_from():
    X, _ = two_inputs()
    y = (X["kind"] == 1).astype(int)
    clf = SharpBalance(Two, **{**SMALL, "max_epochs": 25}).fit(X, y)
    assert clf.score(X, y) > 0.9
