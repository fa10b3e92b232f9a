"""Train several methods at the same cost, and rank them."""

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit, check_cv
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance._validation import check_choice
from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.corruption.sets import check_corruptions
from sklearn_sharpbalance.data.training_data import n_rows, take_rows
from sklearn_sharpbalance.evaluation._measures import Key, Measured, Run
from sklearn_sharpbalance.evaluation.compute import (
    counts_passes,
    gradient_passes,
    match_passes,
)
from sklearn_sharpbalance.evaluation.evaluate import (
    Study,
    as_methods,
    as_seed,
    make_report,
    measure_runs,
)
from sklearn_sharpbalance.evaluation.robustness import as_ood_sets, check_arrays
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import last_step
from sklearn_sharpbalance.training.display import Steps


def compare(
    methods,
    X,
    y,
    *,
    cv=5,
    seeds=1,
    matched_compute=True,
    reference=None,
    fit_params=None,
    corruptions=None,
    severities=SEVERITIES,
    ood=None,
    sharpness=False,
    n_bootstrap=1000,
    random_state=0,
    verbose=0,
):
    """Train methods at matched compute, and rank them.

    Parameters
    ----------
    methods : list of estimators, or dict of str to estimator
        Unfitted estimators, which are cloned.
    X : array-like, DataFrame, dict of arrays or Dataset
        Samples.
    y : array-like of shape (N,)
        Labels.
    cv : int, float, splitter or iterable of (train, test), default=5
        The number of stratified folds, the fraction of one stratified test set, or
        another splitting strategy of scikit-learn.
    seeds : int or sequence of int, default=1
        Number of trainings on each fold, or the ``random_state`` of each.
    matched_compute : bool, default=True
        Change ``max_epochs`` so that every ensemble takes as many gradient passes as
        the reference does, see :func:`gradient_passes`. A number of warm-up epochs
        keeps its fraction of the training, and learning-rate schedules adapt to the
        new length. Other classifiers stay as they are.
    reference : str or None, default=None
        Name of the method whose cost the others get; None is the first.
    fit_params : dict of str to dict, default=None
        More arguments of ``fit`` by method, such as ``{"A2D": {"X_unlabeled": X_u}}``.
        A ``sample_weight`` is split into folds like the samples.
    corruptions, severities, ood, sharpness, n_bootstrap
        What to measure, with meaning and default as in :func:`evaluate`. Sharpness is
        measured on the training samples.
    random_state : int, Generator, RandomState or None, default=0
        Controls the folds, the seeds (if their number is given), and what
        :func:`evaluate` draws.
    verbose : int, default=0
        1 prints a line before each training, with the time left.

    Returns
    -------
    report : EvaluationReport
        A run is one fold and seed; ``std`` is over runs. The report also has the
        "gradient_passes" and "epochs" of each training. Its ``rank()`` ranks them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import (
    ...     DeepEnsembleClassifier, SharpBalanceEnsembleClassifier)
    >>> from sklearn_sharpbalance.evaluation import compare
    >>> X, y = load_iris(return_X_y=True)
    >>> report = compare(
    ...     {"deep": DeepEnsembleClassifier(max_epochs=8),
    ...      "SAM": SharpBalanceEnsembleClassifier(selection="all")},
    ...     X, y, cv=2, n_bootstrap=100)
    >>> report.row("SAM", "epochs")["mean"]  # 3 members * 4 epochs * 2 passes = 3 * 8
    4.0
    """
    named = _one_of_each(methods)
    study = Study(
        corruptions=corruptions,
        severities=severities,
        ood=ood,
        sharpness=sharpness,
        n_bootstrap=n_bootstrap,
        random_state=as_seed(random_state),
    )
    fit_params = {} if fit_params is None else fit_params
    is_nested = isinstance(fit_params, Mapping)
    if not is_nested or not all(isinstance(v, Mapping) for v in fit_params.values()):
        raise InvalidInputError(
            "fit_params must map names of methods to the arguments of their fit, got "
            f"{fit_params!r}."
        )
    for name in fit_params:
        check_choice("name in fit_params", name, named)
    if study.has_corruptions:
        check_arrays(X)
        check_corruptions(X, study.corruptions, study.severities)
    as_ood_sets(study.ood, X)  # raises for unclear names
    seeds = as_seeds(seeds, study.random_state)
    y = np.asarray(y)
    folds = list(_splits(cv, X, y, random_state=study.random_state))
    if matched_compute:
        train, _ = folds[0]
        named = _match(named, reference, take(X, train), y[train])
    results: dict[str, list] = {name: [] for name in named}
    steps = Steps(len(folds) * len(named) * len(seeds), show=verbose)
    for fold, (train, test) in enumerate(folds):
        X_train, y_train = take(X, train), y[train]
        fitted = []
        for name, method in named.items():
            fold_params = _fit_params_of_fold(fit_params.get(name, {}), train)
            for seed in seeds:
                steps.begin(f"fold {fold + 1}: {name}, random_state={seed}")
                estimator = clone_with_seed(method, seed)
                estimator.fit(X_train, y_train, **fold_params)
                fitted.append((name, estimator))
        measured = measure_runs(
            [estimator for _, estimator in fitted],
            take(X, test),
            y[test],
            study,
            X_train=X_train,
            y_train=y_train,
            stream=fold,
        )
        for (name, estimator), result in zip(fitted, measured):
            numbers = result.numbers | _cost(estimator)
            results[name].append(result._replace(numbers=numbers))
    return make_report(results, study)


def _fit_params_of_fold(own: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Return arguments of ``fit`` with the weights of a fold's samples."""
    weights = {
        name: take(value, rows)
        for name, value in own.items()
        if name.endswith("sample_weight") and value is not None
    }
    return {**own, **weights}


def _one_of_each(methods: Any) -> dict[str, Any]:
    """Return the unfitted methods by name, one estimator each."""
    named = as_methods(methods)
    for name, estimators in named.items():
        if len(estimators) != 1:
            raise InvalidInputError(
                f"compare trains one estimator per method, got {len(estimators)} for "
                f"{name!r}. Pass seeds= for several trainings."
            )
    return {name: estimators[0] for name, estimators in named.items()}


def _match(
    named: dict[str, Any], reference: str | None, X: Any, y: np.ndarray
) -> dict[str, Any]:
    """Return clones whose ``max_epochs`` give them the cost of the reference.

    The data are those of one training: on tables the reference's own number of epochs
    depends on them, and is set as well, so that it is the same in all folds.
    """
    if reference is None:
        reference = next(iter(named))
    check_choice("reference", reference, named)
    try:
        passes = gradient_passes(clone(named[reference]), X, y)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"The cost of the reference {reference!r} is not known: {error} Name "
            "another reference, or pass matched_compute=False."
        ) from error
    matched = {}
    for name, given in named.items():
        matched[name] = estimator = clone(given)
        if counts_passes(estimator):
            params = match_passes(estimator, passes, X, y)
            last_step(estimator).set_params(**params)
    return matched


def _splits(cv: Any, X: Any, y: np.ndarray, random_state: int) -> Iterator:
    """Return the train and test rows of each fold."""
    rows = np.zeros(len(y))  # splitters only use the number of samples
    if len(y) != n_rows(X):
        raise InvalidInputError(f"X has {n_rows(X)} samples, y has {len(y)}.")
    if isinstance(cv, Integral) and not isinstance(cv, bool):
        cv = StratifiedKFold(int(cv), shuffle=True, random_state=random_state)
    elif isinstance(cv, float):
        cv = StratifiedShuffleSplit(1, test_size=cv, random_state=random_state)
    return check_cv(cv, y, classifier=True).split(rows, y)


def _cost(estimator: Any) -> Run:
    """Return epochs and gradient passes of a training, if they are known."""
    ensemble = last_step(estimator)
    if not counts_passes(ensemble):
        return {}
    return {
        Key("epochs"): Measured(float(ensemble.n_iter_)),
        Key("gradient_passes"): Measured(gradient_passes(ensemble)),
    }


def as_seeds(seeds: Any, random_state: int) -> list[int]:
    """Return the given seeds, or draw as many as the given number."""
    if isinstance(seeds, Integral):
        if seeds < 1:
            raise InvalidInputError(f"seeds must be at least 1, got {seeds!r}.")
        rng = np.random.default_rng([random_state, 1])
        return rng.integers(2**31 - 1, size=int(seeds)).tolist()
    seeds = [int(seed) for seed in seeds]
    if not seeds:
        raise InvalidInputError("seeds is empty. Pass a number, or some seeds.")
    return seeds


def clone_with_seed(estimator: Any, seed: int) -> Any:
    """Return a clone with every ``random_state`` in it set to the seed."""
    estimator = clone(estimator)
    names = [
        name
        for name in estimator.get_params(deep=True)
        if name == "random_state" or name.endswith("__random_state")
    ]
    return estimator.set_params(**dict.fromkeys(names, seed))


def take(X: Any, rows: np.ndarray) -> Any:
    """Return some rows of samples, as the same type."""
    if hasattr(X, "iloc"):  # pandas
        return X.iloc[rows]
    if isinstance(X, Dataset):
        return Subset(X, rows.tolist())
    if hasattr(X, "with_columns"):  # polars
        return X[rows]
    return take_rows(X if isinstance(X, Mapping) else np.asarray(X), rows)
