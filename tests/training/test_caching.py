"""``memory=`` gives the same ensembles and avoids repeated work."""

import os
from collections import Counter

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.engine.base import Engine, TeamRun
from sklearn_sharpbalance.engine.skorch_engine import SkorchRun
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from tests.cases import SMALL, assert_same_members, rest_slow, table
from tests.training.test_callbacks import RecordTasks

SHORT = {**SMALL, "max_epochs": 2}


@pytest.fixture
def n_calls(monkeypatch):
    """Count the phases that are trained and the scores that are computed."""
    done = Counter()

    def counting(kind, method, name_of):
        original = getattr(kind, method)

        def counted(self, *args, **kwargs):
            done.update(name_of(*args, **kwargs))
            return original(self, *args, **kwargs)

        monkeypatch.setattr(kind, method, counted)

    for run in (SkorchRun, TeamRun):
        counting(run, "train", lambda segment, *args: [segment.name])
    for engine in (Engine, StackedEngine):
        counting(engine, "score", lambda *args: ["scores"])
    return done


def assert_same(one, other):
    assert_same_members(one, other)
    np.testing.assert_array_equal(one.sharpness_, other.sharpness_)
    np.testing.assert_array_equal(one.sam_masks_, other.sam_masks_)
    for mine, theirs in zip(one.history_, other.history_):
        losses = [[row["train_loss"] for row in history] for history in (mine, theirs)]
        assert losses[0] == losses[1]


@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch"]))
def test_cached_fit_equals_a_plain_fit(tmp_path, n_calls, engine):
    X, y = table()
    options = {"validation_fraction": 0.2, "engine": engine, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    n_calls.clear()
    first = SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert n_calls == {"warmup": 1, "balanced": 1, "scores": 1}
    second = SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert n_calls == {
        "warmup": 1,
        "balanced": 1,
        "scores": 1,
    }  # nothing was computed again
    assert_same(first, plain)
    assert_same(second, plain)
    np.testing.assert_array_equal(second.predict_proba(X), plain.predict_proba(X))
    # Members from the cache continue to train in the same way.
    assert_same(second.partial_fit(X, y), plain.partial_fit(X, y))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a folder with the results of a fit."""
    folder = str(tmp_path_factory.mktemp("stored"))
    SharpBalance(memory=folder, **SHORT).fit(*table())
    return folder


CHANGES = [
    {"lr": 0.05},
    {"rho": 0.3},
    {"estimator__module__hidden": (9,)},
    {"class_weight": "balanced"},
    {"max_epochs": 3},
    {"standardize": False},
    {"warmup": "sgd"},
    {"batch_size": 15},
    {"random_state": 1},
    {"lr_schedule": "constant"},
]


@pytest.mark.parametrize("change", rest_slow(CHANGES, keep=4), ids=str)
def test_settings_of_the_warm_up_are_distinguished(stored, n_calls, change):
    X, y = table()
    other = SharpBalance(**{"memory": stored, **SHORT, **change}).fit(X, y)
    assert n_calls["warmup"] == 1
    assert_same(other, SharpBalance(**{**SHORT, **change}).fit(X, y))


def test_data_are_distinguished(tmp_path, n_calls):
    X, y = table()
    options = {"memory": str(tmp_path), **SMALL}
    SharpBalance(**options).fit(X, y)
    nudged = X.copy()
    nudged[0, 0] += 1e-3
    SharpBalance(**options).fit(nudged, y)
    assert n_calls["warmup"] == 2


@pytest.mark.parametrize("held_out", [None, 0.2])
def test_maps_are_distinguished_by_their_files(tmp_path, n_calls, held_out):
    X, y = table()
    options = {"memory": str(tmp_path / "memory"), **SHORT}

    def fit(path, rows=slice(None)):
        mapped = np.load(path, mmap_mode="r")[rows]
        clf = SharpBalance(**options, validation_fraction=held_out)
        return clf.fit(mapped, y[rows])

    for name in ("one.npy", "other.npy"):
        np.save(tmp_path / name, X.astype(np.float32))
    first = fit(tmp_path / "one.npy")
    # A change that neither the time of the file shows nor the quartiles.
    status = (tmp_path / "one.npy").stat()
    X[X.argmax(axis=0), range(5)] *= 2
    np.save(tmp_path / "one.npy", X.astype(np.float32))
    os.utime(tmp_path / "one.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
    scored = n_calls["scores"]
    assert_same_members(fit(tmp_path / "one.npy"), first)
    assert n_calls["scores"] == scored
    fit(tmp_path / "one.npy", slice(1, None))
    (tmp_path / "one.npy").touch()
    fit(tmp_path / "one.npy")
    fit(tmp_path / "other.npy")
    assert n_calls["warmup"] == 4


def test_a_search_trains_the_warm_up_of_each_fold_once(tmp_path, n_calls):
    """A warm-up without SAM does not depend on rho and flat_ratio."""
    X, y = table()
    clf = SharpBalance(warmup="sgd", memory=joblib.Memory(tmp_path, verbose=0), **SHORT)
    grid = [
        {"rho": [0.05, 0.3], "flat_ratio": [0.2]},
        {"rho": [0.3], "flat_ratio": [0.5]},
    ]
    search = GridSearchCV(clf, grid, cv=2, refit=False, scoring="neg_log_loss")
    search.fit(X, y)
    assert n_calls == {"warmup": 2, "balanced": 6, "scores": 2}
    plain = GridSearchCV(clf.set_params(memory=None), grid, cv=2, refit=False)
    plain.set_params(scoring="neg_log_loss").fit(X, y)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"]
    )


def test_early_stopping_with_memory(tmp_path, n_calls):
    X, y = table()
    options = {"validation_fraction": 0.25, "early_stopping": 2, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    cached = [SharpBalance(memory=str(tmp_path), **options).fit(X, y) for _ in "ab"]
    for clf in cached:
        assert_same(clf, plain)
        np.testing.assert_array_equal(clf.validation_scores_, plain.validation_scores_)


@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch"]))
def test_phase_stopped_by_a_callback_is_not_cached(tmp_path, n_calls, engine):
    pytest.importorskip("sklearn.callback")
    X, y = table()
    options = {"engine": engine, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    stop = RecordTasks(stop_at=("epoch", 0))
    for n_fits in (1, 2):  # callbacks are called in the second fit too
        clf = SharpBalance(memory=str(tmp_path), **options).set_callbacks(stop)
        clf.fit(X, y)
        assert [len(history) for history in clf.history_] == [1, 1]
        assert stop.calls.count("-epoch 0") == 2 * n_fits
    assert_same(SharpBalance(memory=str(tmp_path), **options).fit(X, y), plain)
    # A cached phase is not used with a callback that may stop it.
    clf.fit(X, y)
    assert [len(history) for history in clf.history_] == [1, 1]
    n_calls.clear()
    SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert n_calls == {}
