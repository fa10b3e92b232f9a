"""EnsembleSearchCV as a search of scikit-learn: options, errors, plans, resuming."""

import numpy as np
import pytest
import torch
from joblib import Memory
from scipy.stats import uniform
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from skorch.callbacks import EpochScoring
from skorch.helper import SliceDataset
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import OutOfDeviceMemoryError
from sklearn_sharpbalance.model_selection import EnsembleSearchCV, together
from sklearn_sharpbalance.training import trainer
from tests.cases import allocated_on_gpu
from tests.model_selection.cases import (
    SMALL,
    assert_same_ensembles,
    assert_same_search,
    both_searches,
    ensemble,
    table,
)

GRID = {"rho": [0.02, 0.5], "flat_ratio": [0.1, 0.7]}
RADII = {"rho": [0.02, 0.5]}
FEW = {"max_epochs": 2}


@pytest.fixture
def trained(monkeypatch):
    """Number of members and epochs of every stacked training."""
    calls, train = [], together.train_ensembles

    def counted(ensembles, on_epoch=None):
        segment = ensembles[0].segment
        calls.append((sum(len(e.members) for e in ensembles), segment.start))
        return train(ensembles, on_epoch)

    monkeypatch.setattr(together, "train_ensembles", counted)
    return calls


def test_shared_warmups_are_trained_once(trained):
    X, y = table()
    EnsembleSearchCV(ensemble(), GRID, cv=2, refit=False).fit(X, y)
    warmup = sum(n for n, start in trained if start == 0)
    balanced = sum(n for n, start in trained if start == 2)
    assert warmup == 2 * 2 * 2  # values of rho, folds, members
    assert balanced == 4 * 2 * 2


@pytest.mark.parametrize(
    "grid",
    [
        pytest.param({"lr": [0.05, 0.2]}, id="SGD"),
        pytest.param(
            {"lr": [0.01, 0.02], "optimizer": [torch.optim.AdamW]}, id="AdamW"
        ),
        pytest.param(
            {"lr": [0.01, 0.02], "optimizer": [torch.optim.Adam]},
            id="Adam",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_learning_rates_and_weight_decays_are_one_computation(trained, grid):
    X, y = table(60)
    decay = {"estimator__optimizer__weight_decay": [0.0, 0.1]}
    clf = ensemble(**FEW)
    search = EnsembleSearchCV(clf, grid | decay, cv=2, refit=False).fit(X, y)
    assert {fit.training for fit in search.plan_} == {"stacked"}
    warmups = [n for n, start in trained if start == 0]
    assert warmups == [4 * 2 * 2]  # candidates, folds, members


def test_rates_of_an_optimizer_that_is_not_known_are_several_computations(trained):
    X, y = table()
    clf = ensemble(**FEW, optimizer=torch.optim.NAdam, selection="all")
    EnsembleSearchCV(clf, {"lr": [0.01, 0.02]}, cv=2, refit=False).fit(X, y)
    assert [n for n, start in trained if start == 0] == [2 * 2, 2 * 2]


def test_folds_with_different_numbers_of_batches(trained):
    X, y = table()
    folds = [(np.arange(48), np.arange(48, 70)), (np.arange(20, 70), np.arange(20))]
    ours, theirs, fits = both_searches(
        ensemble(**FEW), {"rho": [0.05, 0.5]}, X, y, cv=folds, refit=False
    )
    assert_same_search(ours, theirs, fits)
    assert len(trained) == 4  # two phases, with three and with four batches


def test_a_randomized_search():
    X, y = table()
    space = {"rho": uniform(0.01, 0.4), "flat_ratio": [0.2, 0.6]}
    options = {"n_iter": 2, "random_state": 3, "cv": 2, "scoring": "neg_log_loss"}
    options["refit"] = False
    ours = EnsembleSearchCV(ensemble(**FEW), space, **options).fit(X, y)
    theirs = RandomizedSearchCV(ensemble(**FEW), space, **options).fit(X, y)
    assert_same_search(ours, theirs)
    assert ours.best_params_ == theirs.best_params_


class Shift(TransformerMixin, BaseEstimator):
    """Counts its fits."""

    n_fits = 0

    def __init__(self, by=1.0):
        self.by = by

    def fit(self, X, y=None):
        Shift.n_fits += 1
        self.mean_ = X.mean(axis=0)
        return self

    def transform(self, X):
        return X - self.mean_ + self.by


def test_steps_of_a_pipeline_are_fitted_once_per_fold():
    X, y = table()
    name = "sharpbalanceensembleclassifier"
    pipeline = make_pipeline(Shift(), ensemble(**FEW))
    grid = {f"{name}__rho": [0.02, 0.5]}
    Shift.n_fits = 0
    ours = EnsembleSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    assert Shift.n_fits == 2 + 1  # folds, and the refit
    theirs = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    assert_same_search(ours, theirs)
    assert_same_ensembles(ours.best_estimator_[-1], theirs.best_estimator_[-1])
    assert ours.best_estimator_.memory is None
    assert ours.estimator is pipeline
    assert {fit.training for fit in ours.plan_} == {"stacked"}


def test_settings_of_earlier_steps_may_differ():
    X, y = table()
    grid = {"shift__by": [0.0, 3.0], "sharpbalanceensembleclassifier__rho": [0.1]}
    pipeline = make_pipeline(Shift(), ensemble(standardize=False, **FEW))
    options = {"cv": 2, "scoring": "neg_log_loss", "refit": False}
    ours = EnsembleSearchCV(pipeline, grid, **options).fit(X, y)
    theirs = GridSearchCV(pipeline, grid, **options).fit(X, y)
    assert_same_search(ours, theirs)


@pytest.mark.filterwarnings("ignore:The scoring")  # without weights
def test_sample_weights_and_groups():
    X, y = table()
    rng = np.random.default_rng(0)
    weights, groups = rng.uniform(0.5, 2, len(X)), rng.integers(4, size=len(X))
    ours, theirs, fits = both_searches(
        ensemble(**FEW),
        {"rho": [0.05, 0.5]},
        X,
        y,
        cv=GroupKFold(2),
        fit_params={"sample_weight": weights, "groups": groups},
    )
    assert_same_search(ours, theirs, fits)
    assert_same_ensembles(ours.best_estimator_, theirs.best_estimator_)


@pytest.mark.filterwarnings("ignore")
def test_a_candidate_that_diverges_does_not_affect_others():
    X, y = table()
    grid = {"rho": [0.05, 1e30]}
    clf, options = ensemble(**FEW), {"cv": 2, "refit": False}
    ours, theirs, fits = both_searches(clf, grid, X, y, **options)
    assert_same_search(ours, theirs, fits)
    scores = ours.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(np.isnan(scores), [False, True])
    with pytest.raises(Exception, match="became nan in epoch 1"):
        EnsembleSearchCV(clf, grid, error_score="raise", **options).fit(X, y)


@pytest.mark.filterwarnings("ignore")
def test_a_setting_that_is_not_valid():
    X, y = table()
    search = EnsembleSearchCV(ensemble(**FEW), {"flat_ratio": [0.3, 7]}, cv=2)
    search.fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(np.isnan(scores), [False, True])
    assert [fit.training for fit in search.plan_] == ["stacked"] * 2 + ["ordinary"] * 2
    assert "flat_ratio" in search.plan_[-1].reason


def pictures():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, size=(36, 1, 8, 8), dtype=np.uint8)
    y = rng.integers(0, 2, size=36)
    X[np.arange(36), 0, 4 * y] = 255
    return X, y


@pytest.fixture
def alone(monkeypatch):
    """First epoch of every training by the engine of one fit."""
    starts, train = [], trainer.train_members

    def counted(**arguments):
        starts.append(arguments["segment"].start)
        return train(**arguments)

    counted.__qualname__ = train.__qualname__
    monkeypatch.setattr(trainer, "train_members", counted)
    return starts


def convolutions(**params):
    """An ensemble whose members cannot be stacked."""
    params = {"max_epochs": 2, "warmup": "sgd", "train_transform": None, **params}
    common = {k: v for k, v in SMALL.items() if not k.startswith("estimator__")}
    width = {"estimator__module__width": 2}
    return SharpBalance(SmallCNN, **(common | width | params))


def test_convolutions_share_warmups(alone):
    X, y = pictures()
    options = {"cv": 2, "scoring": "neg_log_loss", "refit": False}
    ours = EnsembleSearchCV(convolutions(), RADII, **options).fit(X, y)
    assert {fit.training for fit in ours.plan_} == {"ordinary"}
    assert "not stacked" in ours.plan_[0].reason
    assert alone.count(0) == 2  # one warm-up for each fold
    assert alone.count(1) == 2 * 2
    theirs = GridSearchCV(convolutions(), RADII, **options).fit(X, y)
    assert_same_search(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["table", "pictures"])
def test_on_a_gpu(kind):
    X, y = table() if kind == "table" else pictures()
    clf = ensemble() if kind == "table" else convolutions()
    clf.set_params(device="cuda")
    before = allocated_on_gpu()
    grid = GRID | ({"lr": [0.02, 0.1]} if kind == "table" else {})
    ours, theirs, fits = both_searches(clf, grid, X, y, cv=2, refit=False)
    expected = {"table": "stacked", "pictures": "ordinary"}[kind]
    assert {fit.training for fit in ours.plan_} == {expected}
    if kind == "table":
        assert_same_search(ours, theirs, fits)
    else:  # bfloat16
        np.testing.assert_allclose(
            ours.cv_results_["mean_test_score"],
            theirs.cv_results_["mean_test_score"],
            atol=0.02,
        )
    del ours, theirs, fits
    assert allocated_on_gpu() <= before


def test_what_is_fitted_as_usual():
    X, y = table()
    items = TensorDataset(torch.as_tensor(X, dtype=torch.float32))
    callback = EpochScoring("accuracy", on_train=False)
    cases = [
        (ensemble(**FEW, callbacks=[callback]), X, "callbacks"),
        (LogisticRegression(), X, "does not train in phases"),
        (ensemble(**FEW, memory=Memory(None)), X, "memory"),
        (ensemble(**FEW, n_buffer=0), SliceDataset(items), "Dataset"),
    ]
    for estimator, samples, reason in cases:
        name = "C" if isinstance(estimator, LogisticRegression) else "rho"
        options = {"cv": [(np.arange(40), np.arange(40, 70))], "refit": False}
        grid = {name: [0.1]}
        search = EnsembleSearchCV(estimator, grid, error_score="raise", **options)
        search.fit(samples, y)
        assert {fit.training for fit in search.plan_} == {"ordinary"}
        assert reason in search.plan_[0].reason
        expected = GridSearchCV(estimator, grid, **options)
        assert_same_search(search, expected.fit(samples, y))


def test_a_deep_ensemble_and_seeds_that_are_drawn():
    X, y = table()
    clf = DeepEnsembleClassifier(**(SMALL | FEW | {"random_state": None}))
    search = EnsembleSearchCV(clf, {"lr": [0.05, 0.1]}, cv=2).fit(X, y)
    assert {fit.training for fit in search.plan_} == {"stacked"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


class Stop:
    """Raises KeyboardInterrupt in the n-th call of a function."""

    def __init__(self, function, n):
        self.function, self.n_left = function, n
        self.__qualname__ = function.__qualname__

    def __call__(self, *args, **kwargs):
        self.n_left -= 1
        if self.n_left == 0:
            raise KeyboardInterrupt
        return self.function(*args, **kwargs)


def test_a_search_continues_from_its_checkpoints(tmp_path, monkeypatch, trained):
    X, y = table()
    options = {"cv": 2, "scoring": "neg_log_loss"}
    clf = ensemble(**FEW)
    search = EnsembleSearchCV(clf, RADII, checkpoint_dir=tmp_path, **options)
    with monkeypatch.context() as patch:
        patch.setattr(together, "train_ensembles", Stop(together.train_ensembles, 2))
        with pytest.raises(KeyboardInterrupt):
            clone(search).fit(X, y)
    trained.clear()
    ours = clone(search).fit(X, y)
    assert {start for _, start in trained} == {1}  # no warm-up again
    theirs = GridSearchCV(clf, RADII, **options).fit(X, y)
    assert_same_search(ours, theirs)
    assert_same_ensembles(ours.best_estimator_, theirs.best_estimator_)
    assert ours.best_estimator_.checkpoint_dir is None
    trained.clear()
    again = clone(search).fit(X, y)
    assert trained == []
    assert_same_search(again, theirs)


def test_groups_that_do_not_fit_the_memory_are_split(monkeypatch):
    X, y = table()
    train, sizes = together.train_ensembles, []

    def small_memory(ensembles, on_epoch=None):
        sizes.append(len(ensembles))
        if len(ensembles) > 2:
            raise OutOfDeviceMemoryError("full")
        return train(ensembles, on_epoch)

    monkeypatch.setattr(together, "train_ensembles", small_memory)
    clf = ensemble(**FEW)
    ours, theirs, fits = both_searches(clf, RADII, X, y, cv=2, refit=False)
    assert max(sizes) > 2
    assert_same_search(ours, theirs, fits)


def test_a_search_shows_one_bar_of_epochs(capsys):
    X, y = table()
    clf = ensemble().set_params(verbose=1)
    EnsembleSearchCV(clf, GRID, cv=2, verbose=1, refit=False).fit(X, y)
    shown = capsys.readouterr().out
    assert "4 candidates x 2 folds" in shown
    assert ": 32 epochs, " in shown  # four candidates, two folds, four epochs
    assert "members" not in shown


def test_parameters_are_checked():
    X, y = table()
    for name, value in (("n_iter", 0), ("checkpoint_dir", 3), ("param_grid", "rho")):
        search = EnsembleSearchCV(ensemble(), {"rho": [0.1]}).set_params(
            **{name: value}
        )
        with pytest.raises(ValueError, match=name):
            search.fit(X, y)
