"""Base class of all ensembles: parameters, fit and predictions."""

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance._parameters import CONSTRAINTS
from sklearn_sharpbalance.aggregation.nets import (
    conformity_scores,
    final_net,
    member_logits,
)
from sklearn_sharpbalance.aggregation.rules import MeanLogitAggregation
from sklearn_sharpbalance.data.inputs import (
    check_layout,
    check_X,
    other_layout,
    refuse_stream,
)
from sklearn_sharpbalance.data.labels import check_y
from sklearn_sharpbalance.data.training_data import as_pairs, is_dataset, take_rows
from sklearn_sharpbalance.ensemble.params import NestedParamsMixin, check_params
from sklearn_sharpbalance.ensemble.uncertainty import UncertaintyMixin
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError
from sklearn_sharpbalance.members.shared_trunk import with_trunk
from sklearn_sharpbalance.persistence.model_file import load_model, save
from sklearn_sharpbalance.runtime.process import own_torch_modes, torch_threads
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.loop import TrainingLoop
from sklearn_sharpbalance.training.net_building import settings_in_force
from sklearn_sharpbalance.training.prepare import prepare
from sklearn_sharpbalance.training.progress import (
    CallbackSupportMixin,
    FitProgress,
    announce,
)


class BaseDeepEnsemble(
    UncertaintyMixin, CallbackSupportMixin, ClassifierMixin, NestedParamsMixin
):
    """Base class of ensembles of skorch nets.

    The steps of :func:`~sklearn_sharpbalance.training.prepare.prepare` are methods of
    the subclasses.
    """

    _parameter_constraints: dict = CONSTRAINTS

    def _validate_params(self):
        """Raise if a parameter violates its constraint or :func:`check_params`."""
        super()._validate_params()
        check_params(self.get_params(deep=False))

    def _run(self, X, y, sample_weight, X_unlabeled=None):
        """Prepare the fit, run its training loop, and set the fitted attributes."""
        prepared = prepare(self, X, y, sample_weight, X_unlabeled=X_unlabeled)
        announce(self, prepared)
        loop = TrainingLoop(prepared)
        with torch_threads(prepared.engine.threads):
            segments = loop.start()
        progress = FitProgress(self, prepared, segments, X=X, y=y)
        try:
            with torch_threads(prepared.engine.threads):
                for _ in loop.steps(segments, progress):
                    pass
        except KeyboardInterrupt:
            if loop.state.epoch > 0:
                self._keep_result(prepared, loop)
            raise
        self._keep_result(prepared, loop)

    def _keep_result(self, prepared, loop):
        """Set the fitted attributes from the result of a loop."""
        self.__dict__.pop("validation_scores_", None)  # of an earlier fit
        with torch_threads(prepared.engine.threads):
            self._keep(prepared, loop.result)
        if loop.early_stopping is not None:
            self.validation_scores_ = np.asarray(loop.early_stopping.scores)
        # Callbacks may have stopped every member before the end of the segment.
        self.n_iter_ = max(loop.state.epochs, default=loop.state.epoch)

    def _keep(self, prepared, state):
        """Set the fitted attributes that all ensembles have."""
        trainer = prepared.trainer
        self.classes_, self.input_format_ = prepared.classes, prepared.input_format
        self.net_, self.aggregation_ = trainer.net, prepared.aggregation
        self.member_seeds_ = [member.seed for member in state.members]
        self.history_ = [member.history for member in state.members]
        self.engine_ = prepared.engine
        self.settings_ = settings_in_force(prepared)
        self.train_indices_ = trainer.data.rows
        self.trunk_ = prepared.trunk
        with random_stream(self.net_.device, seed=prepared.seeds.split):
            data = trainer.as_trained()
            self.heads_ = [final_net(self.net_, m, data) for m in state.members]
            self.estimators_ = self._whole_members()
            self.predictors_ = self.aggregation_.prepare(self.heads_, data)
            self.conformity_scores_ = conformity_scores(
                self.predictors_, self.aggregation_, data
            )

    def _whole_members(self):
        """Return the heads, with the shared trunk if there is one."""
        if self.trunk_ is None:
            return self.heads_
        return [with_trunk(head, self.trunk_) for head in self.heads_]

    def _full_params(self):
        """Return the parameters, with defaults for those that the ensemble lacks."""
        return self.get_params(deep=False)

    def _warm_nets(self):
        """Return the fitted nets that a warm start begins with, else an empty list."""
        return getattr(self, "heads_", []) if self.warm_start else []

    def predict_proba(self, X):
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``. A Dataset with random items, for test-time
            augmentation for example, draws from the global random generators: it
            returns the same items only after the same seed.

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
        """Return scores of the classes; the predicted class has the highest.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        scores : ndarray of shape (N, C), or (N,) for two classes
            Mean of the members' log-probabilities, which are the mean logits up to
            one constant per sample, for the aggregations "mean_logit", soups and
            "best_member". Logarithm of ``predict_proba`` for other aggregations. For
            two classes the difference, which is positive for ``classes_[1]``.
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
        """Return the logits of each member.

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
            return self._logits_of(self.heads_, X)

    def member_inputs(self, X):
        """Return validated samples in the layout that the modules take.

        Use it for measurements on single members. It raises if the layout differs from
        that of the fit.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Returns
        -------
        X : ndarray, dict of ndarray or Dataset
            Float32 tables, with the columns of a DataFrame encoded, images with
            channels first, or the Dataset itself.
        """
        check_is_fitted(self)
        fitted = self.input_format_
        refuse_stream(X)
        X, fmt = check_X(self, X, reset=False, fitted=fitted)
        check_layout(self, fmt, fitted)
        if fmt.shapes != fitted.shapes:  # the module may accept other lengths
            try:
                self._logits_of(self.estimators_[:1], take_rows(X, slice(1)))
            except Exception as error:  # its type depends on the module
                raise other_layout(self, fmt, fitted) from error
        return X

    def _net_inputs(self, X):
        """Return the inputs of the heads, which a trunk computes once for all."""
        X = self.member_inputs(X)
        if self.trunk_ is None:
            return X
        return self.trunk_.features(X, self.input_format_.shape)

    def staged_predict_proba(self, X):
        """Predict class probabilities by the first member, the first two, and so on.

        The last stage is ``predict_proba``. Soups and "best_member" raise, because they
        choose or merge members in ``fit``.

        Parameters
        ----------
        X : array-like, dict of arrays or Dataset
            Samples as in ``fit``.

        Yields
        ------
        proba : ndarray of shape (N, C)
        """
        check_is_fitted(self)
        nets, predictors = self.heads_, self.predictors_
        if list(map(id, predictors)) != list(map(id, nets)):
            raise InvalidInputError(
                f"{type(self.aggregation_).__name__} cannot be applied to the first "
                "members alone: it needs the data of fit. Combine "
                "member_predict_proba by a rule on predictions instead, or fit a "
                "smaller ensemble."
            )
        logits = self._logits(X)
        for n in range(1, len(nets) + 1):
            yield self._aggregate(logits[:n])

    def score(self, X, y=None, sample_weight=None):
        """Return the accuracy on the given data.

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
        if y is None and is_dataset(X):
            X, _ = as_pairs(X)
            classes, codes = check_y(X, None)
            y = classes[codes]
        return super().score(X, y, sample_weight)

    def save(self, path, *, optimizer=True):
        """Write the fitted ensemble to one file, without pickle.

        The file has weights and arrays as safetensors and everything else as JSON.
        :func:`~sklearn_sharpbalance.load` is safe for files from untrusted sources.

        Parameters
        ----------
        path : str or path-like
            An existing file is replaced when the new one is complete.
        optimizer : bool, default=True
            Whether to store the momentum with which ``partial_fit`` continues; without
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
            As in :func:`~sklearn_sharpbalance.load`.

        Returns
        -------
        estimator : estimator instance
        """
        estimator = load(path, **params)
        if not isinstance(estimator, cls):
            raise ModelFileError(
                f"{path} contains a {type(estimator).__name__}, not a {cls.__name__}. "
                "Use sklearn_sharpbalance.load, which reads all ensembles."
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
        The model takes ``X`` (batch, ...) as in ``predict_proba`` and returns
        ``probabilities`` (batch, C), whose labels are in the metadata under
        ``classes``.

        After a fit on a DataFrame the model includes the encoding. It takes each column
        as an input (batch, 1) with the name of the column: strings for text and for
        categories of text, float32 for all others. Missing values are NaN, and the
        empty string in text. Columns without a value in training have no input.
        Infinite numbers are not refused.
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
        ``torch.export.load(path).module()(X)`` returns the probabilities. After a fit
        on a DataFrame, ``X`` is the matrix that :meth:`member_inputs` returns.
        """
        from sklearn_sharpbalance.persistence.export import export_torch

        export_torch(self, path, dtype=dtype)

    def _logits(self, X):
        """Return the logits of the nets that predict."""
        with own_torch_modes():
            X = self._net_inputs(X)
            return self._logits_of(self.predictors_, X)

    def _logits_of(self, nets, X):
        """Return the logits of nets, with as many threads as in ``fit``."""
        with torch_threads(self.engine_.threads):
            return member_logits(nets, X, self.input_format_.shape)

    def _aggregate(self, logits):
        n_logits, n_classes = logits.shape[-1], len(self.classes_)
        if n_logits != n_classes:  # only from a crafted model file
            raise ModelFileError(
                f"Members return {n_logits} logits for {n_classes} classes. Fit again."
            )
        proba = self.aggregation_(logits.astype(np.float64))
        return proba / proba.sum(axis=1, keepdims=True)

    def __getstate__(self):
        state = dict(super().__getstate__())
        if state.get("trunk_") is not None:
            del state["estimators_"]  # they would contain one copy of the trunk each
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        if getattr(self, "trunk_", None) is not None:
            self.trunk_.to(self.heads_[0].device)
            self.estimators_ = self._whole_members()

    def __sklearn_is_fitted__(self):
        # scikit-learn iterates over all attributes, which a fit may change meanwhile.
        return hasattr(self, "estimators_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def load(path, **params):
    """Read an ensemble that ``save`` wrote, on any machine.

    The file names classes and functions, but has no code. Networks of this package and
    layers of torch are found by name; all other objects must be passed again.

    Parameters
    ----------
    path : str or path-like
    **params
        ``module``, the class or factory of the members' network, or the whole net if
        its class is not one of skorch's; other parameters that the file only names (the
        error lists them); ``device``, ``memory``, ``checkpoint_dir`` and ``verbose`` of
        this machine. Without a GPU, an ensemble from a GPU is loaded on the CPU.

    Returns
    -------
    estimator : BaseDeepEnsemble
        Fitted.

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, or sets folders, files, processes or code.
    InvalidInputError
        If an object that must be passed is missing.

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
