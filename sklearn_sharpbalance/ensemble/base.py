"""What all ensembles share: validation, the fit, predictions, tags."""

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.ensemble.html_repr import fitted_summary_html
from sklearn_sharpbalance.ensemble.inputs import check_X, check_y
from sklearn_sharpbalance.ensemble.monitor import CallbackSupportMixin
from sklearn_sharpbalance.ensemble.params import NestedParamsMixin
from sklearn_sharpbalance.ensemble.predicting import member_logits
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError

__all__ = ["BaseDeepEnsemble"]


class BaseDeepEnsemble(CallbackSupportMixin, ClassifierMixin, NestedParamsMixin):
    """Predictions of a fitted ensemble of skorch nets.

    A child sets in ``fit``: ``classes_``, ``estimators_``, ``predictors_``,
    ``aggregation_`` and ``input_format_``.
    """

    def predict_proba(self, X):
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        proba : ndarray of shape (N, C)
        """
        X = self._check_predict(X)
        return self._aggregate(member_logits(self.predictors_, X))

    def predict_log_proba(self, X):
        """Predict logarithms of class probabilities.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        log_proba : ndarray of shape (N, C)
        """
        tiny = np.finfo(np.float32).tiny
        return np.log(np.maximum(self.predict_proba(X), tiny))

    def predict(self, X):
        """Predict classes.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        y : ndarray of shape (N,)
        """
        proba = self.predict_proba(X)
        return self.classes_[proba.argmax(axis=1)]

    def decision_function(self, X):
        """Mean of the members' log-probabilities.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        scores : ndarray of shape (N, C), or (N,) for two classes
            Equal to the mean logits up to one constant per sample, which changes no
            prediction; for two classes the difference, positive for ``classes_[1]``.
        """
        X = self._check_predict(X)
        logits = member_logits(self.predictors_, X)
        mean = log_softmax(logits.astype(np.float64), axis=-1).mean(axis=0)  # (N, C)
        return mean[:, 1] - mean[:, 0] if mean.shape[1] == 2 else mean

    def member_predict_proba(self, X):
        """Predict class probabilities by each member.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        member_probas : ndarray of shape (M, N, C)
        """
        logits = self.member_decision_function(X)
        return softmax(logits.astype(np.float64), axis=-1)

    def member_decision_function(self, X):
        """Logits of each member.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        logits : ndarray of shape (M, N, C)
        """
        X = self._check_predict(X)
        return member_logits(self.estimators_, X)

    def staged_predict_proba(self, X):
        """Predict class probabilities by the first member, the first two, and so on.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Yields
        ------
        proba : ndarray of shape (N, C)
        """
        logits = self.member_decision_function(X)
        for n_members in range(1, len(logits) + 1):
            yield self._aggregate(logits[:n_members])

    def score(self, X, y=None, sample_weight=None):
        """Accuracy on the given data.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.
        y : array-like of shape (N,), default=None
            Labels; None takes those of a Dataset.
        sample_weight : array-like of shape (N,), default=None

        Returns
        -------
        accuracy : float
        """
        if y is None and isinstance(X, torch.utils.data.Dataset):
            classes, codes = check_y(X, None)
            y = classes[codes]
        return super().score(X, y, sample_weight)

    def save(self, path, *, optimizer=True):
        """Write the fitted ensemble to one file, without pickle.

        The file holds weights and arrays as safetensors and all else as JSON. It can
        be opened by :func:`~sklearn_sharpbalance.load` without trust in who wrote it.

        Parameters
        ----------
        path : str or path-like
            The file appears when it is complete; an older one is replaced.
        optimizer : bool, default=True
            Whether to keep the momentum with which ``partial_fit`` goes on; without
            it the file has about half the size.
        """
        from sklearn_sharpbalance.ensemble.persistence import save

        save(self, path, optimizer=optimizer)

    @classmethod
    def load(cls, path, **params):
        """Read an ensemble that :meth:`save` wrote.

        Parameters
        ----------
        path : str or path-like
        **params
            As in :func:`~sklearn_sharpbalance.load`: ``module`` and whatever else
            the file could only name, ``device``, ``n_jobs``.

        Returns
        -------
        estimator : estimator instance
        """
        from sklearn_sharpbalance.ensemble.persistence import load

        estimator = load(path, **params)
        if not isinstance(estimator, cls):
            raise ModelFileError(
                f"{path} holds a {type(estimator).__name__}, not a {cls.__name__}. Use "
                "sklearn_sharpbalance.load, which takes any."
            )
        return estimator

    def export_onnx(self, path, *, dtype=None):
        """Write the ensemble, standardisation and aggregation included, as ONNX.

        Parameters
        ----------
        path : str or path-like
        dtype : {"float32", "uint8"} or None, default=None
            Type of the samples that the model takes; None is that of ``fit``.

        Notes
        -----
        Input ``X`` (batch, ...) as in ``predict_proba``; output ``probabilities``
        (batch, C). The labels of the columns are in the metadata under ``classes``.
        """
        from sklearn_sharpbalance.ensemble.export import export_onnx

        export_onnx(self, path, dtype=dtype)

    def export_torch(self, path, *, dtype=None):
        """Write the ensemble as one ``torch.export`` program.

        Parameters
        ----------
        path : str or path-like
        dtype : {"float32", "uint8"} or None, default=None
            Type of the samples that the program takes; None is that of ``fit``.

        Notes
        -----
        ``torch.export.load(path).module()(X)`` gives the probabilities.
        """
        from sklearn_sharpbalance.ensemble.export import export_torch

        export_torch(self, path, dtype=dtype)

    def _html_repr(self):
        """Scikit-learn's diagram, with the fitted state below: what notebooks show."""
        return estimator_html_repr(self) + fitted_summary_html(self)

    def _aggregate(self, logits):
        proba = self.aggregation_.combine(logits.astype(np.float64))
        return proba / proba.sum(axis=1, keepdims=True)

    def _check_predict(self, X):
        check_is_fitted(self)
        X, fmt = check_X(self, X, reset=False)
        fitted = self.input_format_
        if fmt.shape != fitted.shape or fmt.keys != fitted.keys:
            raise InvalidInputError(
                f"X is {fmt}, but {type(self).__name__} was fitted on {fitted}."
            )
        return X

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
