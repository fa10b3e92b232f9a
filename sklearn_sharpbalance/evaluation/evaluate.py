"""Everything about fitted ensembles in one call."""

from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.evaluation._methods import as_methods
from sklearn_sharpbalance.evaluation._resampling import Draws
from sklearn_sharpbalance.evaluation._runs import (
    Study,
    as_seed,
    make_report,
    measure_runs,
)
from sklearn_sharpbalance.metrics._checks import undefined_once

__all__ = ["evaluate"]


@undefined_once()
def evaluate(
    estimators,
    X,
    y,
    *,
    corruptions=None,
    severities=SEVERITIES,
    ood=None,
    sharpness=False,
    X_train=None,
    y_train=None,
    n_bootstrap=1000,
    confidence=0.95,
    random_state=0,
):
    """Measure fitted ensembles: accurate, calibrated, diverse, flat and robust?

    Parameters
    ----------
    estimators : fitted classifier, list of them, or dict
        Methods to measure. A dictionary maps the name of a method to a classifier, or
        to a list of them that differ in their seed. Any classifier with
        ``predict_proba`` will do as a baseline: it has no rows about members.
        Pipelines and finished searches are looked into.
    X : array-like
        Test samples, as the estimators take them.
    y : array-like of shape (N,)
        Their labels.
    corruptions : None, True, str, iterable or mapping, default=None
        None measures no corruptions. True or "all" measures all kinds; else kinds,
        groups of them, or a mapping such as ``CorruptionFiles``, as in
        :func:`corruption_accuracy`. Accuracy, NLL and ECE on corrupted samples are
        given in all and by severity.
    severities : int or sequence of int, default=(1, 2, 3, 4, 5)
    ood : array-like or dict of str to array-like, default=None
        Foreign samples, or several sets of them by name.
    sharpness : bool, dict or callable, default=False
        True measures the members' adaptive worst-case sharpness, which is slow; a
        dictionary holds options of
        :func:`~sklearn_sharpbalance.metrics.adaptive_sharpness`; a function
        ``sharpness(estimator, X, y) -> float`` replaces it.
    X_train, y_train : array-likes, default=None
        Where sharpness is measured; ``X`` and ``y`` if None. The paper takes training
        data.
    n_bootstrap : int, default=1000
        Bootstrap draws of the samples; 0 leaves the intervals out.
    confidence : float, default=0.95
        Of the intervals.
    random_state : int, Generator, RandomState or None, default=0
        Draws corruptions, batches for sharpness, and the bootstrap.

    Returns
    -------
    report : EvaluationReport
        A tidy table with ``to_frame()``, ``to_markdown()``, ``to_html()`` and
        ``rank()``.

    Notes
    -----
    A bootstrap draw takes the same samples for all methods and seeds, so that methods
    are compared in pairs. Mean and interval of a method with several seeds are those
    of the mean over its seeds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import DeepEnsembleClassifier
    >>> from sklearn_sharpbalance.evaluation import evaluate
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = DeepEnsembleClassifier(max_epochs=5, random_state=0).fit(X[::2], y[::2])
    >>> report = evaluate({"deep": clf}, X[1::2], y[1::2], n_bootstrap=100)
    >>> row = report.row("deep", "accuracy")
    >>> bool(row["low"] <= row["mean"] <= row["high"])
    True
    """
    methods = as_methods(estimators)
    study = Study(
        corruptions, severities, ood, sharpness, confidence, as_seed(random_state)
    )
    draws = Draws(n_bootstrap, study.random_state)
    every = [estimator for runs in methods.values() for estimator in runs]
    results = iter(
        measure_runs(every, X, y, study, draws, X_train=X_train, y_train=y_train)
    )
    return make_report(
        {name: [next(results) for _ in runs] for name, runs in methods.items()},
        len(y),
        study,
    )
