"""Uncertainty of predictions: its parts, and sets that cover the true class."""

from collections.abc import Callable

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance._validation import Interval, Real, check_numbers
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics.uncertainty import uncertainty_parts


class UncertaintyMixin:
    """Predictions of uncertainty, from those of the ensemble and of its members."""

    predict_proba: Callable
    member_predict_proba: Callable

    def predict_uncertainty(self, X, *, kind="entropy"):
        """Return how uncertain each prediction is, and why.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.
        kind : {"entropy", "variance"}, default="entropy"
            Measure of :func:`~sklearn_sharpbalance.metrics.uncertainty_parts`.

        Returns
        -------
        uncertainty : DataFrame of N rows
            Columns ``total``, ``aleatoric`` and ``epistemic``, and ``disagreement``,
            the fraction of pairs of members that predict different classes. The index
            is that of X, if X is a DataFrame of pandas.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn_sharpbalance import DeepEnsembleClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = DeepEnsembleClassifier(max_epochs=5, random_state=0).fit(X, y)
        >>> list(clf.predict_uncertainty(X).columns)
        ['total', 'aleatoric', 'epistemic', 'disagreement']
        """
        import pandas as pd  # takes longer than the import of this package

        parts = uncertainty_parts(self.member_predict_proba(X), kind=kind)
        index = X.index if isinstance(X, pd.DataFrame) else None
        return pd.DataFrame(parts._asdict(), index=index)

    def predict_set(self, X, *, confidence=0.9):
        """Return for each sample the classes that are plausible.

        The true class of a new sample is among them with a probability of at least
        ``confidence``, if new samples come from the distribution of the training data
        (split conformal prediction). The validation samples set the threshold.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.
        confidence : float, default=0.9
            Wanted probability, between 0 and 1.

        Returns
        -------
        sets : ndarray of shape (N, C), dtype bool
            Whether each class, in the order of ``classes_``, is in the set. A set may
            be empty: all classes are then less plausible than those of most samples.

        Notes
        -----
        A class is in the set if its probability is at least 1 - q. With n validation
        samples, q is the k-th smallest value of one minus the probability of the true
        class, with :math:`k = \\lceil (n + 1) \\cdot confidence \\rceil` (Sadinle, Lei
        and Wasserman, 2019). If k is larger than n, every class is in the set.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn_sharpbalance import DeepEnsembleClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = DeepEnsembleClassifier(validation_fraction=0.3, random_state=0)
        >>> clf.fit(X, y).predict_set(X[:1], confidence=0.95)
        array([[ True, False, False]])
        """
        check_is_fitted(self)
        check_numbers(Interval(Real, 0, 1, closed="neither"), confidence=confidence)
        scores = getattr(self, "conformity_scores_", None)
        if scores is None or not len(scores):
            raise InvalidInputError(
                "predict_set needs validation samples, but the ensemble was fitted "
                "without them. Pass for example validation_fraction=0.2 and fit again."
            )
        rank = int(np.ceil((len(scores) + 1) * confidence))
        threshold = np.inf if rank > len(scores) else np.sort(scores)[rank - 1]
        return 1 - self.predict_proba(X) <= threshold
