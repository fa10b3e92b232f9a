"""Preparation of a fit: validation, data, settings and first members."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler

from sklearn_sharpbalance._parameters import PARAMETERS, names_where
from sklearn_sharpbalance.aggregation.rules import Aggregation
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.data.augment import PictureTransform, resolve_transform
from sklearn_sharpbalance.data.inputs import (
    InputFormat,
    check_layout,
    check_X,
    check_y,
    encode_frame,
)
from sklearn_sharpbalance.data.sample_weights import check_weights
from sklearn_sharpbalance.data.validation_split import hold_out
from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.engine.out_of_memory import explain_out_of_memory
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import MemberState, Segment, initial_state
from sklearn_sharpbalance.members.averaging import resolve_averaging
from sklearn_sharpbalance.members.check import check_module
from sklearn_sharpbalance.members.own_settings import own_settings
from sklearn_sharpbalance.members.schedules import resolve as resolve_schedule
from sklearn_sharpbalance.members.state import state_of
from sklearn_sharpbalance.persistence.fingerprint import data_fingerprint, describe
from sklearn_sharpbalance.runtime.devices import resolve_precision
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints, fit_fingerprint
from sklearn_sharpbalance.training.early_stopping import EarlyStopping
from sklearn_sharpbalance.training.loop import Trainer
from sklearn_sharpbalance.training.plan import default_rho, member_rho, warmup_length
from sklearn_sharpbalance.training.state import Seeds

__all__ = [
    "FitSetup",
    "check_partial_fit",
    "check_same_classes",
    "first_members",
    "make_checkpoints",
    "make_training",
    "pruning_epoch",
    "split_and_encode",
    "training_data",
]


@dataclass(frozen=True, kw_only=True)
class FitSetup:
    """Everything that a fit needs before its first epoch.

    Attributes
    ----------
    params : dict
        Parameters of the estimator.
    trainer : Trainer
    plan : list of Segment
    aggregation : Aggregation
    seeds : Seeds
    input_format : InputFormat
    classes : ndarray of shape (C,)
    engine : EngineChoice
    checkpoints : FitCheckpoints or None
    early_stopping : EarlyStopping or None
    key : str or None
        Of the fit among those of a search.
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
    key: str | None = None


def training_data(
    estimator, X, y, sample_weight, class_weight, *, classes=None, reset=True
):
    """Return validated data, the format of the input, and the classes."""
    with random_stream(seed=0):
        fitted = None if reset else estimator.input_format_
        X, fmt = check_X(estimator, X, reset=reset, fitted=fitted)
        if fitted is not None:
            check_layout(estimator, fmt, fitted)
        classes, codes = check_y(X, y, classes)
    weight = check_weights(
        classes, codes, sample_weight=sample_weight, class_weight=class_weight
    )
    item_shape = fmt.shape if fmt.kind == "dataset" else None
    return TrainingData(X, codes, weight, item_shape=item_shape), fmt, classes


def split_and_encode(data, fmt, params, *, seeds, sample_weight, columns=None):
    """Hold out the validation samples, then encode the columns of a DataFrame.

    Held-out samples do not decide how columns are encoded.

    Parameters
    ----------
    data : TrainingData
    fmt : InputFormat
    params : dict
        Parameters of the estimator.
    seeds : Seeds
    sample_weight : array-like of shape (N,) or None
    columns : TableColumns or None, default=None
        Columns of an earlier fit, for a warm start.

    Returns
    -------
    data : TrainingData
    fmt : InputFormat
    """
    data = hold_out(
        data,
        params["validation_fraction"],
        seed=seeds.split,
        sample_weight=sample_weight,
    )
    return encode_frame(data, fmt, fitted=columns)


def check_partial_fit(params, classes=None, known=None):
    """Raise if a parameter needs a whole fit, or if the classes have changed.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    classes : array-like of shape (C,) or None
        Argument of the call.
    known : ndarray of shape (C,) or None
        Classes of the previous calls; None in the first call.
    """
    refused = names_where(partial_fit="refused")
    given = [name for name in refused if params[name]]
    if given:
        values = " and ".join(f"{name}={params[name]!r}" for name in given)
        defaults = " and ".join(f"{n} to {PARAMETERS[n].default}" for n in given)
        raise InvalidInputError(
            f"partial_fit does not support {values}, because the number of calls is "
            f"not known. Use fit, or set {defaults}."
        )
    if classes is None or known is None:
        return
    named = np.unique(classes)
    if not np.array_equal(named, known):
        raise InvalidInputError(
            f"classes={named[:10].tolist()} differs from the previous call, where it "
            f"was {known[:10].tolist()}. Leave out `classes` to keep these classes, or "
            "start again with fit."
        )


def make_training(params: dict[str, Any], net, fmt, n_members) -> Segment:
    """Return the settings of the whole training, as one segment.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    net : NeuralNetClassifier
        From :func:`build_net`.
    fmt : InputFormat
    n_members : int
    """
    schedule = params["lr_schedule"]
    if schedule is None:
        # A configured net keeps its own learning rate.
        is_net = isinstance(params["estimator"], NeuralNetClassifier)
        schedule = "constant" if is_net else "cosine"
    if isinstance(schedule, LRScheduler):
        schedule = "constant"  # the callback sets the learning rate
    rho = default_rho(net.optimizer) if params["rho"] is None else params["rho"]
    return Segment(
        name="balanced",
        start=0,
        stop=net.max_epochs,
        n_epochs=net.max_epochs,
        batch_size=net.batch_size,
        rho=member_rho(rho, n_members),
        lr_schedule=resolve_schedule(schedule),
        transform=_transform(params["train_transform"], fmt),
        precision=resolve_precision(params["precision"], net.device, fmt),
        compile=net.module__compile,
        prune=params["prune"],
        averaging=resolve_averaging(params["weight_averaging"]),
    )


def pruning_epoch(params: dict[str, Any], n_epochs: int) -> int | None:
    """Return the epoch before which members are pruned; None without pruning.

    Members are pruned after the warm-up, or half-way if there is no warm-up or no
    epoch after it.
    """
    if not params["prune"]:
        return None
    n_warmup = warmup_length(params["warmup_epochs"], n_epochs)
    return n_warmup if 0 < n_warmup < n_epochs else n_epochs // 2


def _transform(train_transform, fmt):
    transform = resolve_transform(train_transform)
    if isinstance(transform, PictureTransform) and len(fmt.shape or ()) != 3:
        raise InvalidInputError(
            f"train_transform={train_transform!r} needs pictures (C, H, W), but X is "
            f"{fmt}. Pass a function of a batch, or None."
        )
    return transform


def check_same_classes(classes, fitted):
    """Raise if the classes have changed since the fit of a warm start.

    Parameters
    ----------
    classes, fitted : ndarray of shape (C,)
        Classes of the new labels and of the earlier fit.
    """
    if not np.array_equal(classes, fitted):
        raise InvalidInputError(
            "warm_start=True starts from weights that were fitted to the classes "
            f"{fitted[:10].tolist()}, but y has the classes {classes[:10].tolist()}. "
            "Pass labels of the same classes, or set warm_start=False."
        )


def make_checkpoints(
    params, data, classes, seeds, warm_nets, **more
) -> FitCheckpoints | None:
    """Return the checkpoints of a fit; None without ``checkpoint_dir``.

    Parameters
    ----------
    params : dict
        Parameters of the estimator.
    data : TrainingData
    classes : ndarray of shape (C,)
    seeds : Seeds
    warm_nets : list of NeuralNetClassifier
        Fitted nets that a warm start continues from; else empty.
    **more : str
        More entries of the fingerprint.
    """
    if params["checkpoint_dir"] is None:
        return None
    start = describe([_weights(net) for net in warm_nets]) if warm_nets else "fresh"
    known = fit_fingerprint(params, data_fingerprint(data, classes))
    return FitCheckpoints.open(
        params["checkpoint_dir"],
        {**known, **more, "first weights": start},
        seeds,
        every=params["checkpoint_every"],
        on_error=params["on_checkpoint_error"],
    )


def first_members(net, seeds: Seeds, data, n_classes, warm_nets) -> list[MemberState]:
    """Return the members before training, with new weights or those of an earlier fit.

    Parameters
    ----------
    net : NeuralNetClassifier
        Template of every member.
    seeds : Seeds
    data : TrainingData
    n_classes : int
    warm_nets : list of NeuralNetClassifier
        Fitted nets whose weights the first members start from.
    """
    members = [initial_state(net, i, seed) for i, seed in enumerate(seeds.members)]
    for member, fitted in zip(members, warm_nets):
        _take_weights(member, state_of(fitted))
    for member in members if own_settings(net) else members[:1]:
        check = partial(check_module, net, member, data=data, n_classes=n_classes)
        explain_out_of_memory(check, net, len(members))
    return members


def _weights(net):
    """Return weights and all buffers of a fitted net."""
    state = state_of(net)
    return state.module | state.extra.get("buffers", {})


def _take_weights(member, fitted):
    """Copy fitted weights to a member, but not the statistics of the input."""
    weights = {k: v for k, v in fitted.module.items() if k.startswith("module.")}
    for key, value in weights.items():
        if not torch.is_tensor(value):  # the result of get_extra_state
            continue
        if key not in member.module or member.module[key].shape != value.shape:
            raise InvalidInputError(
                f"warm_start=True starts from the fitted weights, but {key!r} has "
                f"shape {tuple(value.shape)}, which does not fit the new network or "
                "data. Set warm_start=False."
            )
    member.module.update(weights)
    own = member.extra.get("buffers", {})
    loose = {  # buffers outside the state dict, if their shape is the same
        k: v
        for k, v in fitted.extra.get("buffers", {}).items()
        if k.startswith("module.") and own.get(k, v).shape == v.shape
    }
    if loose:
        member.extra["buffers"] = own | loose
