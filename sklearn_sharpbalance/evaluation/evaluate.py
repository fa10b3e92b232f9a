"""Measure fitted ensembles in one call."""

from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.evaluation._inputs import as_methods
from sklearn_sharpbalance.evaluation._runs import (
    check_study,
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
    verbose=0,
):
    """Measure accuracy, calibration, diversity, flatness and robustness of ensembles.

    Parameters
    ----------
    estimators : fitted classifier, list of them, or dict
        Methods to measure. A dictionary maps the name of a method to a classifier, or
        to a list of classifiers that differ in their seed. Any classifier with
        ``predict_proba`` can be a baseline; it has no rows about members. Of a
        pipeline or a finished search the classifier inside is used.
    X : array-like
        Test samples, in the form that the estimators accept.
    y : array-like of shape (N,)
        Labels of the test samples.
    corruptions : None, True, str, iterable or mapping, default=None
        Kinds of corruption, groups of them, or a mapping such as ``CorruptionFiles``,
        as in :func:`corruption_accuracy`. True or "all" measures all kinds, None
        measures none. The report has accuracy, NLL and ECE on corrupted samples by
        severity and in all.
    severities : int or sequence of int, default=(1, 2, 3, 4, 5)
    ood : array-like or dict of str to array-like, default=None
        Out-of-distribution samples, or several sets of them by name.
    sharpness : bool, dict or callable, default=False
        True measures the members' adaptive worst-case sharpness, which is slow. A
        dictionary holds options of
        :func:`~sklearn_sharpbalance.metrics.adaptive_sharpness`. A function
        ``sharpness(estimator, X, y) -> float`` replaces it.
    X_train, y_train : array-likes, default=None
        Samples on which sharpness is measured; ``X`` and ``y`` if None. The paper uses
        training data.
    n_bootstrap : int, default=1000
        Number of bootstrap draws of the samples; 0 leaves out the intervals.
    confidence : float, default=0.95
        Confidence level of the intervals.
    random_state : int, Generator, RandomState or None, default=0
        Controls corruptions, the batches for sharpness, and the bootstrap.
    verbose : int, default=0
        1 prints a line after each classifier is measured.

    Returns
    -------
    report : EvaluationReport
        A tidy table with ``to_frame()``, ``to_markdown()``, ``to_html()`` and
        ``rank()``.

    Notes
    -----
    A bootstrap draw takes the same samples for all methods and seeds, so that methods
    are compared in pairs. For a method with several seeds, mean and interval are those
    of the mean over the seeds.

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
    study = check_study(
        corruptions=corruptions,
        severities=severities,
        ood=ood,
        sharpness=sharpness,
        n_bootstrap=n_bootstrap,
        confidence=confidence,
        random_state=random_state,
    )
    names = [name for name, runs in methods.items() for _ in runs]
    classifiers = [estimator for runs in methods.values() for estimator in runs]
    measured = measure_runs(
        classifiers,
        X,
        y,
        study,
        X_train=X_train,
        y_train=y_train,
        names=names if verbose else None,
    )
    results: dict[str, list] = {name: [] for name in methods}
    for name, result in zip(names, measured):
        results[name].append(result)
    return make_report(results, len(y), study)
