"""A search has the result of GridSearchCV, for every parameter of the ensemble."""

import pytest
import torch
from sklearn.model_selection import StratifiedKFold

from tests.cases import rest_slow
from tests.model_selection.cases import (
    assert_same_ensembles,
    assert_same_search,
    both_searches,
    ensemble,
    table,
)


def test_rho_and_flat_ratio():
    X, y = table()
    grid = {"rho": [0.02, 0.5], "flat_ratio": [0.1, 0.7]}
    ours, theirs, fits = both_searches(ensemble(), grid, X, y, cv=2)
    assert {fit.training for fit in ours.plan_} == {"stacked"}
    assert_same_search(ours, theirs, fits)
    assert ours.best_params_ == theirs.best_params_
    assert_same_ensembles(ours.best_estimator_, theirs.best_estimator_)


GRIDS = {
    "lr": {"lr": [0.05, 0.2], "rho": [0.05, 0.5]},
    "weight_decay": {"estimator__optimizer__weight_decay": [0.0, 0.1]},
    "momentum": {
        "estimator__optimizer__momentum": [0.0, 0.9],
        "optimizer": [torch.optim.SGD],
    },
    "optimizer": {"optimizer": [None, torch.optim.AdamW], "lr": [0.01]},
    "seeds": {"random_state": [0, 1, 7]},
    "selection": {"selection": ["flattest", "random", "sharpest"]},
    "sharpness": {"sharpness": ["fisher_trace", "loss"]},
    "none and all": {"flat_ratio": [0.0, 0.4, 1.0]},
    "class_weight": {"class_weight": [None, "balanced", {"a": 3.0}]},
    "sam": {"sam": ["sam", "asam", "gsam", "friendly_sam", "look_sam"]},
    "momentum_sam": {"sam": ["momentum_sam"], "rho": [0.1, 0.5]},
    "warmup": {"warmup": ["sam", "sgd"], "rho": [0.05, 0.5]},
    "warmup_epochs": {"warmup_epochs": [0, 1, 4, 0.5]},
    "max_epochs": {"max_epochs": [2, 4]},
    "lr_schedule": {"lr_schedule": ["cosine", "steps", "constant"]},
    "batch_size": {"batch_size": [8, 16]},
    "standardize": {"standardize": [True, False]},
    "network": {"estimator__module__hidden": [(4,), (6, 5)]},
    "n_estimators": {"n_estimators": [2, 3]},
    "rho of members": {"rho": [[0.05, 0.2], 0.1]},
    "aggregation": {"aggregation": ["mean_logit", "uniform_soup"]},
    "validation": {"validation_fraction": [None, 0.2]},
    "early_stopping": {
        "early_stopping": [1, 2],
        "validation_fraction": [0.3],
        "max_epochs": [8],
    },
    "weight_averaging": {"weight_averaging": [None, "uniform", "exponential"]},
    "prune": {"prune": [None, 0.5]},
    "label_smoothing": {"estimator__criterion__label_smoothing": [0.0, 0.2]},
    "engine": {"engine": ["stacked", "skorch"]},
    "member_params": {"member_params": [None, [{"lr": 0.1}, {"lr": 0.02}]]},
}


SIMILAR = {
    *("aggregation", "class_weight", "label_smoothing", "lr_schedule", "max_epochs"),
    *("momentum", "momentum_sam", "n_estimators", "none and all", "prune"),
    *("rho of members", "seeds", "selection", "sharpness"),
    *("standardize", "validation", "warmup", "weight_averaging", "weight_decay"),
}


@pytest.mark.parametrize("n_folds", rest_slow([1, 2]))
@pytest.mark.parametrize("name", rest_slow(GRIDS, GRIDS.keys() - SIMILAR))
def test_parameter(name, n_folds):
    X, y = table()
    cv = list(StratifiedKFold(2).split(X, y))[:n_folds]
    ours, theirs, fits = both_searches(
        ensemble(), GRIDS[name], X, y, cv=cv, refit=False
    )
    assert_same_search(ours, theirs, fits)
