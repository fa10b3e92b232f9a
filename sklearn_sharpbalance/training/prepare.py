"""Preparation of a fit: validation, data, settings, members and trainer.

:func:`prepare` is the template of every fit. The steps in which ensembles differ are
methods of the estimator (:class:`Preparing`).
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler

from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS, Aggregation
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.data.augment import ImageTransform, resolve_transform
from sklearn_sharpbalance.data.inputs import (
    InputFormat,
    check_layout,
    check_X,
    encode_frame,
)
from sklearn_sharpbalance.data.labels import check_weights, check_y, hold_out
from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.members.schedules import check_factors
from sklearn_sharpbalance.members.schedules import resolve as resolve_schedule
from sklearn_sharpbalance.members.state import state_of
from sklearn_sharpbalance.members.weights import resolve_averaging
from sklearn_sharpbalance.persistence.fingerprint import (
    data_fingerprint,
    describe,
    describe_samples,
)
from sklearn_sharpbalance.runtime.devices import resolve_precision
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints, fit_fingerprint
from sklearn_sharpbalance.training.early_stopping import (
    EarlyStopping,
    check_early_stopping,
)
from sklearn_sharpbalance.training.image_recipe import image_recipe
from sklearn_sharpbalance.training.loop import Trainer
from sklearn_sharpbalance.training.plan import (
    Seeds,
    cut_length,
    default_rho,
    draw_seeds,
    member_rho,
    plan_segments,
)
from sklearn_sharpbalance.training.progress import has_callbacks

__all__ = [
    "Inputs",
    "Prepared",
    "Preparing",
    "Samples",
    "Start",
    "prepare",
    "read_samples",
]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a fit.

    Attributes
    ----------
    data : TrainingData
    format : InputFormat
    classes : ndarray of shape (C,)
    """

    data: TrainingData
    format: InputFormat
    classes: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the members of a fit see.

    Attributes
    ----------
    data : TrainingData
        The samples, or features that a shared trunk computes from them.
    format : InputFormat
        Format of ``data``.
    read : TrainingData
        Source of the batches: ``data``, or samples to augment before the trunk.
    unlabeled : TrainingData or None
        Like ``read``, without labels.
    trunk : Trunk or None
    """

    data: TrainingData
    format: InputFormat
    read: TrainingData
    unlabeled: TrainingData | None = None
    trunk: Any = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a fit begins with.

    Attributes
    ----------
    seeds : Seeds
        Those of the checkpoint, if the fit resumes from one.
    checkpoints : FitCheckpoints or None
    warm_nets : list of NeuralNetClassifier
        Fitted nets that a warm start continues from; else empty.
    """

    seeds: Seeds
    checkpoints: FitCheckpoints | None
    warm_nets: list[NeuralNetClassifier]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything that a fit needs before its first epoch.

    Attributes
    ----------
    params : dict
        Parameters of the estimator, with defaults for the data in place of None.
    trainer : Trainer
    plan : list of Segment
    aggregation : Aggregation
    seeds : Seeds
    input_format : InputFormat
    classes : ndarray of shape (C,)
    engine : EngineChoice
    checkpoints : FitCheckpoints or None
    early_stopping : EarlyStopping or None
    """

    params: dict[str, Any]
    trainer: Trainer
    plan: list[Segment]
    aggregation: Aggregation
    seeds: Seeds
    input_format: InputFormat
    classes: np.ndarray
    engine: EngineChoice
    checkpoints: FitCheckpoints | None = None
    early_stopping: EarlyStopping | None = None


class Preparing(Protocol):
    """The steps of :func:`prepare` in which ensembles differ."""

    phase: str  # name of the segments after the warm-up

    def _full_params(self) -> dict[str, Any]:
        """Return the parameters, with defaults for those that it does not have."""

    def _nested(self, part: str) -> dict[str, Any]:
        """Return the nested parameters of a part without its prefix."""

    def _read_unlabeled(self, X_unlabeled, given: Samples) -> TrainingData | None:
        """Return validated samples without labels, if the training uses them."""

    def _member_inputs(
        self, params, samples: Samples, unlabeled, start: Start
    ) -> Inputs:
        """Return what the members see."""

    def _recipe(self, params, nested, samples: Samples, *, continues, whole_fit):
        """Return parameters with defaults for the data in place of None."""

    def _make_net(self, params, nested, inputs: Inputs, *, start, classes, continues):
        """Return the net that every member is a copy of."""

    def _make_trainer(
        self, params, net, inputs: Inputs, training, *, start, n_classes
    ) -> tuple[Trainer, EngineChoice]:
        """Return the trainer, and the choice of the engine."""


def prepare(
    estimator,
    X,
    y,
    sample_weight,
    *,
    classes=None,
    continues=False,
    whole_fit=True,
    X_unlabeled=None,
) -> Prepared:
    """Validate everything that a fit gets, and build what it needs.

    Parameters
    ----------
    estimator : BaseDeepEnsemble
        Not changed, but for what scikit-learn's validation of X sets.
    X, y, sample_weight, classes, X_unlabeled
        Arguments of ``fit`` or ``partial_fit``.
    continues : bool, default=False
        Whether ``partial_fit`` continues with the fitted members.
    whole_fit : bool, default=True
        False in ``partial_fit``, whose number of calls is not known, and which writes
        no checkpoints.
    """
    estimator._validate_params()
    params, nested = estimator._full_params(), estimator._nested("estimator")
    given = read_samples(
        estimator, X, y, sample_weight, params, classes=classes, continues=continues
    )
    n_images = len(given.data) if whole_fit else 0
    params = image_recipe(params, nested, fmt=given.format, n_images=n_images)
    unlabeled = estimator._read_unlabeled(X_unlabeled, given)
    n_members = len(estimator.estimators_) if continues else params["n_estimators"]
    start = _start(
        estimator, params, given, unlabeled, n_members=n_members, whole_fit=whole_fit
    )
    samples = _split_and_encode(estimator, params, given, start, sample_weight)
    n_classes = len(samples.classes)
    aggregation = AGGREGATIONS.resolve(params["aggregation"])
    aggregation.set_params(**estimator._nested("aggregation"))
    aggregation.check(samples.data)  # before a trunk computes features
    aggregation.try_out(n_members, n_classes)
    inputs = estimator._member_inputs(params, samples, unlabeled, start)
    params, nested = estimator._recipe(
        params, nested, samples, continues=continues, whole_fit=whole_fit
    )
    net = estimator._make_net(
        params,
        nested,
        inputs,
        start=start,
        classes=samples.classes,
        continues=continues,
    )
    aggregation.check_settings(net)
    training = _training(
        params, net, samples.format, phase=estimator.phase, n_members=n_members
    )
    trainer, engine = estimator._make_trainer(
        params, net, inputs, training, start=start, n_classes=n_classes
    )
    trainer.check()
    check_factors(training, len(inputs.data))
    early_stopping = EarlyStopping.of(params["early_stopping"], aggregation)
    return Prepared(
        params=params,
        trainer=trainer,
        plan=_plan(estimator, params, trainer, early_stopping),
        aggregation=aggregation,
        seeds=start.seeds,
        input_format=samples.format,
        classes=samples.classes,
        engine=engine,
        checkpoints=start.checkpoints,
        early_stopping=early_stopping,
    )


def read_samples(
    estimator, X, y, sample_weight, params, *, classes=None, continues=False
) -> Samples:
    """Return validated samples, with labels as codes and weights of mean one."""
    fitted = estimator.input_format_ if continues else None
    with random_stream(seed=0):
        X, fmt = check_X(estimator, X, reset=not continues, fitted=fitted)
        if fitted is not None:
            check_layout(estimator, fmt, fitted)
            fmt = replace(fmt, dtype=fitted.dtype)  # defaults are of the first call
        known = estimator.classes_ if continues else classes
        found, codes = check_y(X, y, known)
    if estimator._warm_nets():
        _check_same_classes(found, estimator.classes_)
    weight = check_weights(
        found,
        codes,
        sample_weight=sample_weight,
        class_weight=params["class_weight"],
    )
    item_shape = fmt.shape if fmt.kind == "dataset" else None
    data = TrainingData(X, codes, weight, item_shape=item_shape)
    return Samples(data=data, format=fmt, classes=found)


def _check_same_classes(classes, fitted):
    """Raise if the classes have changed since the fit of a warm start."""
    if not np.array_equal(classes, fitted):
        raise InvalidInputError(
            "warm_start=True starts from weights that were fitted to the classes "
            f"{fitted[:10].tolist()}, but y has the classes {classes[:10].tolist()}. "
            "Pass labels of the same classes, or set warm_start=False."
        )


def _start(estimator, params, given, unlabeled, *, n_members, whole_fit) -> Start:
    """Draw the seeds and open the checkpoints, which may have seeds of their own."""
    seeds = draw_seeds(params["random_state"], n_members)
    warm_nets = estimator._warm_nets()
    if params["checkpoint_dir"] is None or not whole_fit:
        return Start(seeds=seeds, checkpoints=None, warm_nets=warm_nets)
    weights = [_weights(net) for net in warm_nets]
    fingerprint = fit_fingerprint(params, data_fingerprint(given.data, given.classes))
    fingerprint["first weights"] = describe(weights) if warm_nets else "fresh"
    if unlabeled is not None:
        fingerprint["X_unlabeled"] = describe_samples(unlabeled.X)
    checkpoints = FitCheckpoints.open(
        params["checkpoint_dir"],
        fingerprint,
        seeds,
        every=params["checkpoint_every"],
    )
    return Start(seeds=checkpoints.seeds, checkpoints=checkpoints, warm_nets=warm_nets)


def _split_and_encode(estimator, params, given, start, sample_weight) -> Samples:
    """Hold out the validation samples, then encode the columns of a DataFrame.

    Validation samples do not decide how columns are encoded.
    """
    data = hold_out(
        given.data,
        params["validation_fraction"],
        seed=start.seeds.split,
        sample_weight=sample_weight,
    )
    data, fmt = encode_frame(data, given.format, fitted=estimator._warm_columns())
    check_early_stopping(params["early_stopping"], data)
    return replace(given, data=data, format=fmt)


def _training(params: dict[str, Any], net, fmt, *, phase, n_members) -> Segment:
    """Return the settings of the whole training, as one segment."""
    rho = default_rho(net.optimizer) if params["rho"] is None else params["rho"]
    return Segment(
        name=phase,
        start=0,
        stop=net.max_epochs,
        n_epochs=net.max_epochs,
        batch_size=net.batch_size,
        rho=member_rho(rho, n_members),
        lr_schedule=resolve_schedule(_schedule(params)),
        transform=_transform(params["train_transform"], fmt),
        precision=resolve_precision(params["precision"], net.device, fmt),
        compile=net.module__compile,
        prune=params["prune"],
        averaging=resolve_averaging(params["weight_averaging"]),
    )


def _schedule(params):
    """Return the schedule, or the default one."""
    schedule = params["lr_schedule"]
    if isinstance(schedule, LRScheduler):
        return "constant"  # the callback sets the learning rate
    if schedule is not None:
        return schedule
    # A configured net keeps its own learning rate.
    is_net = isinstance(params["estimator"], NeuralNetClassifier)
    return "constant" if is_net else "cosine"


def _transform(train_transform, fmt):
    if train_transform is None:
        return None
    transform = resolve_transform(train_transform)
    if isinstance(transform, ImageTransform) and len(fmt.shape or ()) != 3:
        raise InvalidInputError(
            f"train_transform={train_transform!r} needs pictures (C, H, W), but X is "
            f"{fmt}. Pass a function of a batch, or None."
        )
    return transform


def _plan(estimator, params, trainer, early_stopping) -> list[Segment]:
    """Return the segments of the whole fit."""
    cut_every = cut_length(
        trainer.training.n_epochs,
        params["checkpoint_every"],
        whole_phases=trainer.memory is not None or has_callbacks(estimator),
    )
    return plan_segments(
        trainer.training,
        n_warmup=trainer.n_warmup,
        reselect_every=params["reselect_every"],
        cut_every=cut_every if early_stopping is None else 1,
        prune_epoch=trainer.prune_epoch,
    )


def _weights(net):
    """Return weights and all buffers of a fitted net."""
    state = state_of(net)
    return state.module | state.extra.get("buffers", {})
