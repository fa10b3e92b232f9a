"""What all ensembles share: validation, the fit, predictions, tags."""

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance._parameters import CONSTRAINTS
from sklearn_sharpbalance.aggregation.predicting import member_logits
from sklearn_sharpbalance.aggregation.rules import MeanLogitAggregation
from sklearn_sharpbalance.data.inputs import (
    check_layout,
    check_X,
    check_y,
    other_layout,
)
from sklearn_sharpbalance.data.training_data import take_rows
from sklearn_sharpbalance.ensemble.constraints import check_params
from sklearn_sharpbalance.ensemble.html_repr import fitted_summary_html
from sklearn_sharpbalance.ensemble.params import NestedParamsMixin
from sklearn_sharpbalance.exceptions import ModelFileError
from sklearn_sharpbalance.persistence.model_file import load_model, save
from sklearn_sharpbalance.runtime.threads import torch_threads
from sklearn_sharpbalance.runtime.torch_modes import own_torch_modes
from sklearn_sharpbalance.training.loop import TrainingLoop
from sklearn_sharpbalance.training.progress import CallbackSupportMixin, FitProgress

__all__ = ["BaseDeepEnsemble", "load"]


class BaseDeepEnsemble(CallbackSupportMixin, ClassifierMixin, NestedParamsMixin):
    """Predictions of a fitted ensemble of skorch nets.

    A child sets in ``fit``: ``classes_``, ``estimators_``, ``predictors_``,
    ``aggregation_`` and ``input_format_``.
    """

    _parameter_constraints: dict = CONSTRAINTS

    def predict_proba(self, X):
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``. Items of a Dataset that are drawn at random, for
            test-time augmentation say, draw from the global generators, as in a loop
            over them: other items in each call, the same ones after the same seed.

        Returns
        -------
        proba : ndarray of shape (N, C)
        """
        return self._aggregate(self._logits(X))

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
        """Scores of the classes, the highest for the one that is predicted.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        scores : ndarray of shape (N, C), or (N,) for two classes
            Where the mean logit decides, which soups and the best member do as well,
            the mean of the members' log-probabilities: the mean logits up to one
            constant per sample. By any other aggregation the logarithm of
            ``predict_proba``. For two classes the difference, positive for
            ``classes_[1]``.
        """
        check_is_fitted(self)
        if type(self.aggregation_).combine is MeanLogitAggregation.combine:
            logits = self._logits(X).astype(np.float64)
            scores = log_softmax(logits, axis=-1).mean(axis=0)
        else:
            scores = self.predict_log_proba(X)  # (N, C)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

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
        with own_torch_modes():
            X = self._net_inputs(X)
            return member_logits(self._nets(), X, self.input_format_.shape)

    def member_inputs(self, X):
        """Samples as the modules of ``estimators_`` take them.

        For measurements on single members. What the fit does not allow is refused.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        X : ndarray, dict of ndarray or Dataset
            Tables as float32, pictures with channels first, a Dataset as it is.
        """
        check_is_fitted(self)
        fitted = self.input_format_
        X, fmt = check_X(self, X, reset=False, fitted=fitted)
        check_layout(self, fmt, fitted)
        if fmt.shapes != fitted.shapes:  # lengths may vary, if the module takes them
            try:
                member_logits(self.estimators_[:1], take_rows(X, slice(1)))
            except Exception as error:  # of several kinds, by the module
                raise other_layout(self, fmt, fitted) from error
        return X

    def _net_inputs(self, X):
        """Validated samples as :meth:`_nets` and ``predictors_`` take them."""
        return self.member_inputs(X)

    def _nets(self):
        """Members that take what ``_net_inputs`` returns."""
        return self.estimators_

    def staged_predict_proba(self, X):
        """Predict class probabilities by the first member, the first two, and so on.

        The last stage is ``predict_proba``. A rule on weights or a choice of a member
        is applied again to the members of each stage, as far as it needs no data for
        that; "greedy_soup", and "uniform_soup" of networks with BatchNorm, are refused.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Yields
        ------
        proba : ndarray of shape (N, C)
        """
        check_is_fitted(self)
        nets, predictors = self._member_nets(), self.predictors_
        if list(map(id, predictors)) == list(map(id, nets)):  # a rule on predictions
            whole = self._logits(X)
            stages = (whole[:n] for n in range(1, len(nets) + 1))
        else:
            stages = self._staged_logits(X, nets)
        for logits in stages:
            yield self._aggregate(logits)

    def _staged_logits(self, X, nets):
        with own_torch_modes():
            X = self._net_inputs(X)
        for n_members in range(1, len(nets)):
            with own_torch_modes():  # not around the yield: it is the user's turn there
                stage = self.aggregation_.stage(nets[:n_members])
                logits = member_logits(stage, X, self.input_format_.shape)
            yield logits
        with own_torch_modes():
            logits = member_logits(self.predictors_, X, self.input_format_.shape)
        yield logits

    def _member_nets(self):
        """What was trained for each member."""
        return getattr(self, "heads_", self.estimators_)

    def _warm_nets(self):
        """Fitted nets that the next fit starts from."""
        is_warm = self.warm_start and hasattr(self, "estimators_")
        return self._member_nets() if is_warm else []

    def _fit(self, setup, X, y, fitted):
        """Run the training loop as set up, and keep its result.

        Parameters
        ----------
        setup : FitSetup
        X, y
            What ``fit`` was given.
        fitted : FittedState
        """
        loop = TrainingLoop(
            setup.trainer,
            setup.plan,
            checkpoints=setup.checkpoints,
            early_stopping=setup.early_stopping,
        )
        segments = loop.start()
        progress = FitProgress(
            self,
            segments,
            n_members=len(setup.seeds.members),
            n_epochs=setup.trainer.training.n_epochs,
            verbose=setup.params["verbose"],
            X=X,
            y=y,
            keep=lambda estimator, state: estimator._keep(setup, state),
        )
        try:
            with torch_threads(setup.engine.threads):
                loop.run(segments, progress)
        except KeyboardInterrupt:
            if loop.state.epoch > 0:
                self._keep_result(setup, loop)
                fitted.usable_epochs = loop.result.epoch
            raise
        finally:
            setup.trainer.close()
        self._keep_result(setup, loop)

    def _keep_result(self, setup, loop):
        """Set the fitted attributes from the result of a loop."""
        self.__dict__.pop("validation_scores_", None)  # of an earlier fit
        self._keep(setup, loop.result)
        if loop.early_stopping is not None:
            self.validation_scores_ = np.asarray(loop.early_stopping.scores)
        # Not the end of the segment: callbacks may have stopped every member before.
        self.n_iter_ = max(loop.state.epochs, default=loop.state.epoch)

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
        from sklearn_sharpbalance.persistence.export import export_onnx

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
        from sklearn_sharpbalance.persistence.export import export_torch

        export_torch(self, path, dtype=dtype)

    def _validate_params(self):
        """Scikit-learn's check of the parameters, and what it cannot say."""
        super()._validate_params()
        check_params(self.get_params(deep=False))

    def _html_repr(self):
        """Scikit-learn's diagram, with the fitted state below: what notebooks show."""
        return estimator_html_repr(self) + fitted_summary_html(self)

    def _logits(self, X):
        """Logits of the nets that predict."""
        with own_torch_modes():
            X = self._net_inputs(X)
            return member_logits(self.predictors_, X, self.input_format_.shape)

    def _aggregate(self, logits):
        n_logits, n_classes = logits.shape[-1], len(self.classes_)
        if n_logits != n_classes:  # of a crafted model file
            raise ModelFileError(
                f"Members return {n_logits} logits for {n_classes} classes. Fit again."
            )
        proba = self.aggregation_(logits.astype(np.float64))
        return proba / proba.sum(axis=1, keepdims=True)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def load(path, **params):
    """Read an ensemble that ``save`` wrote, on any machine.

    The file names the classes and functions that belong to the ensemble; it holds
    none of their code and runs none. Names of this package's networks and of torch's
    layers are looked up, everything else is passed here again.

    Parameters
    ----------
    path : str or path-like
    **params
        ``module``, the class or factory of the members' network, or the whole net if
        its class is not one of skorch's; any other parameter that the file could only
        name (the error lists them), such as arguments that name a file; ``device``,
        ``n_jobs``, ``memory``, ``checkpoint_dir``, ``verbose`` to set them for this
        machine. What was written on a GPU opens on the CPU where there is none.

    Returns
    -------
    estimator : BaseDeepEnsemble
        Fitted.

    Raises
    ------
    ModelFileError
        If the file is damaged, of a newer format or not a model, or sets what a file
        may not set: folders, files, processes or code.
    InvalidInputError
        If something must be passed that was not.

    Examples
    --------
    >>> import os, tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = DeepEnsembleClassifier(max_epochs=2, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "iris.safetensors")
    ...     clf.save(path)
    ...     again = load(path)
    >>> bool((again.predict_proba(X) == clf.predict_proba(X)).all())
    True
    """
    return load_model(path, params, base=BaseDeepEnsemble)
