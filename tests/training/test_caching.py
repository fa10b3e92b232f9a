"""``memory=``: the same ensembles, and work that several fits share is done once."""

from collections import Counter

import joblib
import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.engine import SkorchEngine, StackedEngine
from sklearn_sharpbalance.members.averaging import WeightAveraging
from sklearn_sharpbalance.sharpness import FisherTraceScorer

N = 60
SMALL = {
    "n_estimators": 2,
    "max_epochs": 4,
    "batch_size": 20,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (8,),
}


def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.8)


@pytest.fixture
def work(monkeypatch):
    """Counts the phases that were trained and the scores that were computed."""
    done = Counter()

    def counting(kind, method, name_of):
        original = getattr(kind, method)

        def counted(self, *args, **kwargs):
            done.update(name_of(*args, **kwargs))
            return original(self, *args, **kwargs)

        monkeypatch.setattr(kind, method, counted)

    for engine in (SkorchEngine, StackedEngine):
        counting(engine, "train", lambda **call: [call["segment"].name])
    # Two samples are looked at before the warm-up of every fit.
    names = ["scores"]
    counting(FisherTraceScorer, "score_samples", lambda net, X, y: names * (len(y) > 2))
    return done


def assert_same(one, other):
    for mine, theirs in zip(one.estimators_, other.estimators_):
        state, twin = mine.module_.state_dict(), theirs.module_.state_dict()
        assert all(torch.equal(value, twin[key]) for key, value in state.items())
    np.testing.assert_array_equal(one.sharpness_, other.sharpness_)
    np.testing.assert_array_equal(one.sam_masks_, other.sam_masks_)
    for mine, theirs in zip(one.history_, other.history_):
        losses = [[row["train_loss"] for row in history] for history in (mine, theirs)]
        assert losses[0] == losses[1]


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_a_cached_fit_is_the_same_fit(tmp_path, work, engine):
    X, y = table()
    options = {"validation_fraction": 0.2, "engine": engine, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    work.clear()
    first = SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert work == {"warmup": 1, "balanced": 1, "scores": 2}
    second = SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert work == {"warmup": 1, "balanced": 1, "scores": 2}  # nothing was done again
    assert_same(first, plain)
    assert_same(second, plain)
    np.testing.assert_array_equal(second.predict_proba(X), plain.predict_proba(X))
    # A member that was read from the store trains on as any other.
    assert_same(second.partial_fit(X, y), plain.partial_fit(X, y))


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.05},
        {"batch_size": 15},
        {"random_state": 1},
        {"rho": 0.3},
        {"max_epochs": 5},
        {"lr_schedule": "constant"},
        {"estimator__module__hidden": (9,)},
        {"standardize": False},
        {"class_weight": "balanced"},
        {"warmup": "sgd"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_matters_to_the_warm_up_is_not_mixed_up(tmp_path, work, change):
    X, y = table()
    options = {"memory": str(tmp_path), **SMALL}
    SharpBalance(**options).fit(X, y)
    other = SharpBalance(**{**options, **change}).fit(X, y)
    assert work["warmup"] == 2
    assert_same(other, SharpBalance(**{**SMALL, **change}).fit(X, y))


def test_functions_without_a_name_go_by_their_code(tmp_path, work):
    X, y = table()
    options = {"memory": str(tmp_path), **SMALL}
    for slope in (1.0, 1.0, 0.5):
        clf = SharpBalance(lr_schedule=lambda done, a=slope: 1 - a * done, **options)
        clf.fit(X, y)
    assert work["warmup"] == 2


def test_other_data_are_other_work(tmp_path, work):
    X, y = table()
    options = {"memory": str(tmp_path), **SMALL}
    SharpBalance(**options).fit(X, y)
    nudged = X.copy()
    nudged[0, 0] += 1e-3
    SharpBalance(**options).fit(nudged, y)
    assert work["warmup"] == 2


def test_a_search_trains_the_warm_up_of_each_fold_once(tmp_path, work):
    """Warm-up without SAM: neither rho nor flat_ratio matters before the selection."""
    X, y = table()
    clf = SharpBalance(warmup="sgd", memory=joblib.Memory(tmp_path, verbose=0), **SMALL)
    grid = {"rho": [0.05, 0.3], "flat_ratio": [0.2, 0.5]}
    search = GridSearchCV(clf, grid, cv=2, refit=False, scoring="neg_log_loss")
    search.fit(X, y)
    assert work == {"warmup": 2, "balanced": 8, "scores": 4}
    plain = GridSearchCV(clf.set_params(memory=None), grid, cv=2, refit=False)
    plain.set_params(scoring="neg_log_loss").fit(X, y)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"]
    )


def test_averages_that_begin_later_share_the_warm_up(tmp_path, work):
    X, y = table()
    options = {"memory": str(tmp_path), **SMALL}
    SharpBalance(**options).fit(X, y)
    for start, trained in ((0.5, 1), (0.25, 2)):  # the warm-up is half of the epochs
        averaged = {"weight_averaging": WeightAveraging(start=start)}
        clf = SharpBalance(**options, **averaged).fit(X, y)
        assert work["warmup"] == trained
        assert_same(clf, SharpBalance(**SMALL, **averaged).fit(X, y))
        work["warmup"] -= 1


def test_a_search_shares_the_warm_up_with_sam_over_flat_ratio_only(tmp_path, work):
    X, y = table()
    clf = SharpBalance(warmup="sam", memory=str(tmp_path), **SMALL)
    grid = {"rho": [0.05, 0.3], "flat_ratio": [0.2, 0.5]}
    GridSearchCV(clf, grid, cv=2, refit=False).fit(X, y)
    assert work == {"warmup": 4, "balanced": 8, "scores": 8}


STEPS = {
    "sam": {},
    "asam": {"estimator__optimizer__eta": 0.1},
    "gsam": {"estimator__optimizer__alpha": 0.1},
    "friendly_sam": {"estimator__optimizer__sigma": 0.5},
    "momentum_sam": {},
    "look_sam": {"estimator__optimizer__k": 2},
}


@pytest.mark.parametrize(
    ("engine", "optimizer"),
    [
        ("skorch", None),
        ("stacked", torch.optim.Adam),
        pytest.param("stacked", None, marks=pytest.mark.slow),
        pytest.param("skorch", torch.optim.RMSprop, marks=pytest.mark.slow),
    ],
)
def test_kinds_of_sam_share_a_warm_up_without_it(tmp_path, work, engine, optimizer):
    """And go on from it, momentum included, as if it had been their own."""
    X, y = table()
    options = {**SMALL, "warmup": "sgd", "rho": 0.3, "engine": engine}
    options |= {"optimizer": optimizer, "lr": 0.1 if optimizer is None else 0.003}
    shared = []
    for sam, own in STEPS.items():
        if (sam, optimizer) == ("gsam", torch.optim.RMSprop):
            own = {}  # its alpha is that of RMSprop
        if (sam, optimizer) == ("momentum_sam", torch.optim.RMSprop):
            continue  # it has no momentum
        shared.append(
            SharpBalance(sam=sam, memory=str(tmp_path), **options, **own).fit(X, y)
        )
        alone = SharpBalance(sam=sam, **options, **own)
        before = work["warmup"]
        assert_same(shared[-1], alone.fit(X, y))
        assert_same_steps(shared[-1], alone)
        assert_same(shared[-1].partial_fit(X, y), alone.partial_fit(X, y))
        work["warmup"] = before
    assert work["warmup"] == 1
    ends = {tuple(row["train_loss"] for row in clf.history_[0]) for clf in shared}
    assert len(ends) == len(shared)  # the kinds differ later


def assert_same_steps(one, other):
    for mine, theirs in zip(one.estimators_, other.estimators_):
        assert type(mine.optimizer_) is type(theirs.optimizer_)
        state, twin = mine.optimizer_.state_dict(), theirs.optimizer_.state_dict()
        assert state["param_groups"] == twin["param_groups"]
        for i, entries in state["state"].items():
            for key, value in entries.items():
                np.testing.assert_array_equal(value, twin["state"][i][key])
        assert state["state"].keys() == twin["state"].keys()


def test_a_kind_of_sam_with_options_of_each_member_has_its_own_warm_up(tmp_path, work):
    X, y = table()
    apart = [{"optimizer__alpha": 0.1}, {"optimizer__alpha": 0.9}]
    options = {**SMALL, "warmup": "sgd", "sam": "gsam", "member_params": apart}
    cached = SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert_same(cached, SharpBalance(**options).fit(X, y))


def test_without_a_place_nothing_is_kept(tmp_path, work, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = table()
    for _ in range(2):
        SharpBalance(**SMALL).fit(X, y)
    assert work["warmup"] == 2
    assert list(tmp_path.iterdir()) == []


def test_early_stopping_from_the_store(tmp_path, work):
    X, y = table()
    options = {"validation_fraction": 0.25, "early_stopping": 2, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    cached = [SharpBalance(memory=str(tmp_path), **options).fit(X, y) for _ in "ab"]
    for clf in cached:
        assert_same(clf, plain)
        np.testing.assert_array_equal(clf.validation_scores_, plain.validation_scores_)


class StopAtOnce:
    """A callback of scikit-learn's kind that ends members after their first epoch."""

    def __init__(self):
        self.epochs = 0

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context):
        self.epochs += context.task_name == "epoch"
        return context.task_name == "epoch"


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_what_a_callback_ended_is_not_found_by_a_fit_without_it(tmp_path, work, engine):
    pytest.importorskip("sklearn.callback")
    X, y = table()
    options = {"engine": engine, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    stop = StopAtOnce()
    for n_fits in (1, 2):  # the second hears of its epochs as the first did
        clf = SharpBalance(memory=str(tmp_path), **options).set_callbacks(stop)
        clf.fit(X, y)
        assert [len(history) for history in clf.history_] == [1, 1]
        assert stop.epochs == 2 * n_fits
    assert_same(SharpBalance(memory=str(tmp_path), **options).fit(X, y), plain)
    # Nor is a whole phase that was kept given to a callback that would have ended it.
    clf.fit(X, y)
    assert [len(history) for history in clf.history_] == [1, 1]
    work.clear()
    SharpBalance(memory=str(tmp_path), **options).fit(X, y)
    assert work == {}
