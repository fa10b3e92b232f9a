"""Preparation of a fit: validation, data, settings, members and trainer.

:func:`prepare` is the template of every fit. The steps in which ensembles differ are
methods of the estimator: ``_read_unlabeled``, ``_recipe`` (defaults for the data in
place of None), ``_make_net`` and ``_make_trainer``.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from skorch.helper import SliceDataset
from torch import nn

from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS, Aggregation
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.data.augment import ImageTransform, resolve_transform
from sklearn_sharpbalance.data.inputs import (
    InputFormat,
    check_layout,
    check_X,
    encode_frame,
)
from sklearn_sharpbalance.data.labels import (
    check_held_out,
    check_weights,
    check_y,
    hold_out,
)
from sklearn_sharpbalance.data.reading import read_once
from sklearn_sharpbalance.datasets import Stream
from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.members.schedules import check_factors
from sklearn_sharpbalance.members.schedules import resolve as resolve_schedule
from sklearn_sharpbalance.members.shared_trunk import Trunk, as_trunk, with_features
from sklearn_sharpbalance.members.state import state_of
from sklearn_sharpbalance.members.weights import resolve_averaging
from sklearn_sharpbalance.persistence.fingerprint import (
    condense,
    data_fingerprint,
    describe,
)
from sklearn_sharpbalance.runtime.devices import resolve_devices, resolve_precision
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints, fit_fingerprint
from sklearn_sharpbalance.training.image_recipe import (
    image_recipe,
    warn_of_float_images,
)
from sklearn_sharpbalance.training.loop import EarlyStopping
from sklearn_sharpbalance.training.plan import (
    Seeds,
    cut_length,
    default_rho,
    draw_seeds,
    member_rho,
    plan_segments,
)
from sklearn_sharpbalance.training.progress import has_callbacks
from sklearn_sharpbalance.training.table_recipe import table_step

NOT_OF_STREAMS = (
    "validation_fraction",
    "class_weight",
    "shared_trunk",
    "weight_averaging",
    "memory",
)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a fit."""

    data: TrainingData
    format: InputFormat
    classes: np.ndarray  # (C,)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the members of a fit see: samples, or features of a shared trunk."""

    data: TrainingData
    format: InputFormat
    read: TrainingData  # source of the batches: data, or samples to augment
    unlabeled: TrainingData | None = None  # like read
    trunk: Trunk | None = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a fit begins with."""

    seeds: Seeds  # those of the checkpoint, if the fit resumes from one
    checkpoints: FitCheckpoints | None
    warm_nets: list[NeuralNetClassifier]  # fitted nets of a warm start


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything that a fit needs before its first epoch."""

    params: dict[str, Any]  # with defaults for the data in place of None
    trainer: Any  # PhasedTrainer or JointTrainer
    plan: list[Segment]
    aggregation: Aggregation
    seeds: Seeds
    input_format: InputFormat
    classes: np.ndarray  # (C,)
    engine: EngineChoice
    trunk: Trunk | None = None
    checkpoints: FitCheckpoints | None = None
    early_stopping: EarlyStopping | None = None


def prepare(
    estimator,
    X,
    y,
    sample_weight,
    *,
    classes=None,
    continues: bool = False,
    whole_fit: bool = True,
    X_unlabeled=None,
) -> Prepared:
    """Validate everything that a fit gets, and build what it needs.

    ``continues`` if ``partial_fit`` trains the fitted members. It is no ``whole_fit``:
    the number of its calls is not known, and it writes no checkpoints.
    """
    estimator._validate_params()
    asked, asked_of_net = estimator._full_params(), estimator._nested("estimator")
    read = read_samples(
        estimator, X, y, sample_weight, asked, classes=classes, continues=continues
    )
    given = _given(asked, asked_of_net, read, whole_fit=whole_fit)
    unlabeled = estimator._read_unlabeled(X_unlabeled, read)
    n_members = len(estimator.estimators_) if continues else given["n_estimators"]
    start = _start(
        estimator, given, read, unlabeled, n_members=n_members, whole_fit=whole_fit
    )
    samples = _split_and_encode(estimator, given, read, start, sample_weight)
    aggregation = _aggregation(estimator, given, samples, n_members)
    inputs = _inputs(estimator, given, samples, unlabeled, start, continues=continues)
    if inputs.trunk is not None:
        given = table_step(given, asked_of_net, fmt=inputs.format)
    params, nested = estimator._recipe(
        given,
        asked_of_net,
        inputs,
        n_classes=len(samples.classes),
        continues=continues,
        whole_fit=whole_fit,
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
        params,
        net,
        phase=estimator.phase,
        n_members=n_members,
        given=samples.format,
        seen=inputs.format,
    )
    trainer, engine = estimator._make_trainer(
        params, net, inputs, training, start=start, n_classes=len(samples.classes)
    )
    trainer.check()
    check_factors(training, len(inputs.data))
    return Prepared(
        params=params,
        trainer=trainer,
        plan=_plan(trainer, params["early_stopping"], has_callbacks(estimator)),
        aggregation=aggregation,
        seeds=start.seeds,
        input_format=samples.format,
        classes=samples.classes,
        engine=engine,
        trunk=inputs.trunk,
        checkpoints=start.checkpoints,
        early_stopping=EarlyStopping.of(params["early_stopping"], aggregation),
    )


def read_samples(
    estimator, X, y, sample_weight, params, *, classes=None, continues=False
) -> Samples:
    """Return validated samples, with labels as codes and weights of mean one."""
    fitted = estimator.input_format_ if continues else None
    check = partial(check_X, estimator, reset=not continues, fitted=fitted)
    with random_stream(seed=0):
        given, (X, fmt) = X, check(X)
        known = estimator.classes_ if continues else classes
        if isinstance(X, Stream) and y is not None:
            raise InvalidInputError("A stream has its own labels. Pass no y.")
        if isinstance(X, Stream) and known is None:
            known = X.classes
        is_known = not isinstance(X, Stream) or X.id is not None
        if fmt.kind == "dataset" and is_known:
            labelled = y is None and not isinstance(given, SliceDataset)
            loader = _loader_params(estimator)
            kept = read_once(X, fmt, params["n_buffer"], loader, labelled=labelled)
            if kept is not None:
                X, fmt = check(kept[0])
                y = kept[1] if labelled else y
        if isinstance(X, Stream):
            _check_stream(estimator, sample_weight, params)
            X = X.for_fit(params["n_buffer"])
        if fitted is not None:
            check_layout(estimator, fmt, fitted)
            fmt = replace(fmt, dtype=fitted.dtype)  # defaults are of the first call
        found, codes = check_y(X, y, known)
    if estimator._warm_nets():
        _check_same_classes(found, estimator.classes_)
    weight = check_weights(
        found, codes, sample_weight=sample_weight, class_weight=params["class_weight"]
    )
    item_shape = fmt.shape if fmt.kind == "dataset" else None
    data = TrainingData(X, codes, weight, item_shape=item_shape)
    return Samples(data=data, format=fmt, classes=found)


def _check_stream(estimator, sample_weight, params) -> None:
    """Raise if a fit needs samples that can be told apart."""
    if params["selection"] not in ("all", "none"):
        raise InvalidInputError(
            f"selection={params['selection']!r} selects single samples, which a stream "
            "cannot name. Pass stream(..., id=...) if its items have an id and need "
            "not be read at each use. If not, pass selection='all' or 'none', or use "
            "DeepEnsembleClassifier."
        )
    given = {name: params[name] is not None for name in NOT_OF_STREAMS}
    given["sample_weight"] = sample_weight is not None
    given[type(estimator).__name__] = estimator.phase == "joint"
    refused = [name for name, is_given in given.items() if is_given]
    if refused:
        raise InvalidInputError(
            f"A stream cannot be used with {', '.join(refused)}: its samples are not "
            "known before they are read. Remove it, pass a Dataset with an index, or "
            "stream(..., id=...) if its items have an id."
        )


def _loader_params(estimator) -> dict[str, Any]:
    """Return the user's settings of the DataLoader."""
    net, prefix = estimator.estimator, "iterator_train__"
    own = net.get_params() if isinstance(net, NeuralNetClassifier) else {}
    own |= estimator._nested("estimator")
    return {k[len(prefix) :]: v for k, v in own.items() if k.startswith(prefix)}


def _given(asked, asked_of_net, read, *, whole_fit) -> dict[str, Any]:
    """Return the parameters with augmentation and step in place of defaults."""
    given, fmt = asked, read.format
    if fmt.has_three_axes:
        n_images = len(read.data) if whole_fit else 0
        given = image_recipe(asked, asked_of_net, fmt=fmt, n_images=n_images)
        if whole_fit:
            with random_stream(seed=0):  # items of a Dataset may be random
                warn_of_float_images(asked, asked_of_net, fmt=fmt, X=read.data.X)
    elif asked["train_transform"] == "auto":
        given = asked | {"train_transform": None}
    if given["shared_trunk"] is None:
        given = table_step(given, asked_of_net, fmt=fmt)
    return given


def _check_same_classes(classes, fitted):
    """Raise if the classes have changed since the fit of a warm start."""
    if not np.array_equal(classes, fitted):
        raise InvalidInputError(
            "warm_start=True starts from weights that were fitted to the classes "
            f"{fitted[:10].tolist()}, but y has the classes {classes[:10].tolist()}. "
            "Pass labels of the same classes, or set warm_start=False."
        )


def _start(estimator, params, read, unlabeled, *, n_members, whole_fit) -> Start:
    """Draw the seeds and open the checkpoints, which may have seeds of their own."""
    seeds = draw_seeds(params["random_state"], n_members)
    warm_nets = estimator._warm_nets()
    if params["checkpoint_dir"] is None or not whole_fit:
        return Start(seeds=seeds, checkpoints=None, warm_nets=warm_nets)
    weights = [_weights(net) for net in warm_nets]
    fingerprint = fit_fingerprint(params, data_fingerprint(read.data, read.classes))
    fingerprint["first weights"] = describe(weights) if warm_nets else "fresh"
    if unlabeled is not None:
        fingerprint["X_unlabeled"] = condense(describe(unlabeled.X))
    checkpoints = FitCheckpoints(params["checkpoint_dir"], fingerprint, seeds)
    return Start(seeds=checkpoints.seeds, checkpoints=checkpoints, warm_nets=warm_nets)


def _weights(net):
    """Return weights and all buffers of a fitted net."""
    state = state_of(net)
    return state.module | state.extra.get("buffers", {})


def _split_and_encode(estimator, params, read, start, sample_weight) -> Samples:
    """Hold out the validation set, then encode the columns of a DataFrame.

    The validation set does not decide how columns are encoded.
    """
    split = hold_out(
        read.data,
        params["validation_fraction"],
        seed=start.seeds.split,
        sample_weight=sample_weight,
    )
    columns = estimator.input_format_.columns if estimator._warm_nets() else None
    data, fmt = encode_frame(split, read.format, fitted=columns)
    if params["early_stopping"]:
        check_held_out(data, "early_stopping needs")
    return replace(read, data=data, format=fmt)


def _inputs(estimator, params, samples, unlabeled, start, *, continues) -> Inputs:
    """Return the samples, or the features that a shared trunk computes from them.

    Without augmentation the features are the same in every epoch, and batches are read
    from them. Else the trunk computes them from each batch.
    """
    data, fmt = samples.data, samples.format
    if unlabeled is not None and fmt.columns is not None:
        unlabeled = replace(unlabeled, X=fmt.columns.transform(unlabeled.X))
    if params["shared_trunk"] is None:
        return Inputs(data=data, format=fmt, read=data, unlabeled=unlabeled)
    trunk = _trunk(estimator, params, fmt, start, continues=continues)
    augments = params["train_transform"] is not None
    own = hasattr(params["memory"], "cached")  # a search keeps features of a split
    compute = params["memory"].cached(with_features) if own else with_features
    with random_stream(trunk.device, seed=start.seeds.split):  # random items
        features = compute(data=data, trunk=trunk)
    if unlabeled is not None and not augments:
        with random_stream(trunk.device, seed=start.seeds.split):
            unlabeled = with_features(unlabeled, trunk)
    shape = features.X.shape[1:]
    return Inputs(
        data=features,
        format=InputFormat("table" if len(shape) == 1 else "array", shape, shape),
        read=data if augments else features,
        unlabeled=unlabeled,
        trunk=trunk,
    )


def _trunk(estimator, params, fmt, start, *, continues) -> Trunk:
    """Return the shared trunk; one that was made keeps the weights of the last fit."""
    given, device = params["shared_trunk"], resolve_devices(params["device"])[0]
    trunk = as_trunk(
        given,
        fmt,
        device=device,
        seed=start.seeds.selection,
        precision=resolve_precision(params["precision"], device, fmt),
    )
    fitted = estimator.trunk_ if continues or start.warm_nets else None
    if fitted is not None and not isinstance(given, nn.Module):
        trunk.take_weights(fitted)
    return trunk


def _aggregation(estimator, params, samples, n_members) -> Aggregation:
    """Return the aggregation; raise if it cannot combine these members."""
    aggregation = AGGREGATIONS.resolve(params["aggregation"])
    aggregation.set_params(**estimator._nested("aggregation"))
    aggregation.check(samples.data)
    aggregation.try_out(n_members, len(samples.classes))
    return aggregation


def _training(params: dict[str, Any], net, *, phase, n_members, given, seen) -> Segment:
    """Return the settings of the whole training, as one segment.

    Samples of the ``given`` format are augmented; members see the other format.
    """
    rho = default_rho(net.optimizer) if params["rho"] is None else params["rho"]
    return Segment(
        name=phase,
        start=0,
        stop=net.max_epochs,
        n_epochs=net.max_epochs,
        batch_size=net.batch_size,
        rho=member_rho(rho, n_members),
        lr_schedule=resolve_schedule(_schedule(params)),
        transform=_transform(params["train_transform"], given),
        precision=resolve_precision(params["precision"], net.device, seen),
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
    if isinstance(transform, ImageTransform) and not fmt.has_three_axes:
        raise InvalidInputError(
            f"train_transform={train_transform!r} needs images (C, H, W), but X is "
            f"{fmt}. Pass a function of a batch, or None."
        )
    return transform


def _plan(trainer, early_stopping, has_callbacks) -> list[Segment]:
    """Return the segments of the whole fit."""
    cut_every = cut_length(trainer.training.n_epochs)
    if early_stopping:
        cut_every = 1
    elif trainer.memory is not None or has_callbacks:
        cut_every = None  # a cache stores whole phases, and callbacks follow them
    return plan_segments(
        trainer.training,
        n_warmup=trainer.n_warmup,
        cut_every=cut_every,
        prune_epoch=trainer.prune_epoch,
    )
