"""From the parameters of an estimator and its data to fitted members."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler

from sklearn_sharpbalance.data.augment import PictureTransform, resolve_transform
from sklearn_sharpbalance.data.inputs import (
    check_layout,
    check_X,
    check_y,
    input_statistics,
)
from sklearn_sharpbalance.data.sample_weights import check_weights
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.support import check_overrides
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.members.averaging import resolve_averaging
from sklearn_sharpbalance.members.net import ensemble_callbacks, is_sharpness_aware
from sklearn_sharpbalance.members.schedules import resolve as resolve_schedule
from sklearn_sharpbalance.members.state import MemberState, own_draws, restore
from sklearn_sharpbalance.optim import OPTIMIZERS
from sklearn_sharpbalance.runtime.devices import resolve_devices, resolve_precision
from sklearn_sharpbalance.training.net_settings import (
    check_callbacks,
    check_net_settings,
)
from sklearn_sharpbalance.training.plan import Settings, member_rho, warmup_length

__all__ = [
    "Seeds",
    "base_rate",
    "build_net",
    "check_partial_fit",
    "draw_seeds",
    "make_settings",
    "renewed_member",
    "renewed_net",
    "training_data",
]


@dataclass(frozen=True)
class Seeds:
    """Every seed of a fit, drawn once in the parent."""

    members: tuple[int, ...]
    selection: int
    split: int


def draw_seeds(random_state, n_members):
    """Seeds from ``random_state``; None takes fresh entropy, not the global RNG."""
    if random_state is None:
        random_state = np.random.RandomState(np.random.MT19937())
    elif not isinstance(random_state, np.random.RandomState):
        random_state = np.random.RandomState(random_state)
    # The fixed ones first: the first members of a larger ensemble stay the same.
    split, selection, *members = random_state.randint(2**31 - 1, size=2 + n_members)
    return Seeds(tuple(map(int, members)), int(selection), int(split))


def training_data(
    estimator, X, y, sample_weight, class_weight, *, classes=None, reset=True
):
    """Validated data, the format of the input, and the classes."""
    with own_draws():
        fitted = None if reset else estimator.input_format_
        X, fmt = check_X(estimator, X, reset=reset, fitted=fitted)
        if fitted is not None:
            check_layout(estimator, fmt, fitted)
        classes, codes = check_y(X, y, classes)
    weight = check_weights(classes, codes, sample_weight, class_weight)
    item_shape = fmt.shape if fmt.kind == "dataset" else None
    return TrainingData(X, codes, weight, item_shape=item_shape), fmt, classes


def check_partial_fit(params, classes=None, known=None):
    """Refuse what single epochs cannot do, and a change of mind about the classes.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    classes : array-like of shape (C,) or None
        Those that the call names.
    known : ndarray of shape (C,) or None
        Those of the calls before; None in the first call.
    """
    _refuse(
        params,
        {"weight_averaging": None, "prune": None},
        "which begins at a share of all epochs: how many calls will come is not known",
    )
    _refuse(
        params,
        {"early_stopping": False, "checkpoint_dir": None},
        "which follows a whole fit: here it is the caller who ends the training, and "
        "saves the ensemble in between",
    )
    if classes is None or known is None:
        return
    named = np.unique(classes)
    if not np.array_equal(named, known):
        raise InvalidInputError(
            f"classes={named[:10].tolist()} is not the same as in the call before, "
            f"where it was {known[:10].tolist()}. Leave `classes` out to go on with "
            "those, or begin anew with fit."
        )


def _refuse(params, neutral, reason):
    given = [name for name in neutral if params[name]]
    if not given:
        return
    values = " and ".join(f"{name}={params[name]!r}" for name in given)
    remedy = " and ".join(f"{name} to {neutral[name]}" for name in given)
    raise InvalidInputError(
        f"partial_fit does not go together with {values}, {reason}. Use fit, or set "
        f"{remedy}."
    )


def build_net(params, nested, fmt, X, n_classes, weight=None, seed=0):
    """The net that every member is a copy of.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    nested : dict
        Its ``estimator__...`` parameters.
    fmt : InputFormat
    X : ndarray, dict or Dataset
        For the statistics of the input.
    n_classes : int
    weight : ndarray of shape (N,) or None, default=None
        Sample weights, for the statistics as well.
    seed : int, default=0
        For what items of a Dataset draw.
    """
    net = _users_net(params, nested, fmt, n_classes)
    with own_draws(seed):
        standard = input_statistics(X, fmt, weight) if params["standardize"] else None
    return _members_net(net, params, n_classes, standard)


def renewed_net(fitted, params, nested, fmt, n_classes):
    """The members' net by the parameters of now, with the statistics of the first call.

    Parameters
    ----------
    fitted : NeuralNetClassifier
        That of the calls before.
    params, nested, fmt, n_classes
        As in :func:`build_net`.
    """
    net = _users_net(params, nested, fmt, n_classes)
    mean = fitted.module__mean
    statistics = None if mean is None else (mean, fitted.module__scale)
    return _members_net(net, params, n_classes, statistics)


def _users_net(params, nested, fmt, n_classes):
    """What the user passed as a skorch net that members can honour."""
    net = as_skorch_net(
        params["estimator"], fmt.shape, n_classes, nested, params["optimizer"]
    )
    check_overrides(net)
    check_net_settings(net, params)
    return net


def _members_net(net, params, n_classes, statistics):
    net = member_net(
        net,
        n_classes,
        statistics=statistics,
        sam=resolve_sam(params["sam"]),
        device=resolve_devices(params["device"])[0],
        settings={
            k: params[k] for k in ("lr", "batch_size", "max_epochs", "optimizer")
        },
        callbacks=ensemble_callbacks(params),
    )
    check_callbacks(net, has_valid=params["validation_fraction"] is not None)
    return net


def base_rate(net) -> float:
    """Learning rate of a member that has none of its own."""
    return net.get_params_for("optimizer").get("lr", net.lr)


def renewed_member(net, member: MemberState) -> MemberState:
    """A member with the net's learning rate, and the momentum that it had."""
    fresh = restore(net, replace(member, optimizer=None)).optimizer_.param_groups
    state = member.optimizer
    assert state is not None  # of a member that has trained
    groups = [
        {**group, "lr": new["lr"], "initial_lr": new["lr"]}
        for group, new in zip(state["param_groups"], fresh)
    ]
    return replace(member, optimizer={**state, "param_groups": groups})


def resolve_sam(sam):
    """Class of the sharpness-aware optimizer for a name or a class."""
    if isinstance(sam, str) and sam in OPTIMIZERS:
        return OPTIMIZERS[sam]
    if is_sharpness_aware(sam):
        return sam
    names = ", ".join(map(repr, OPTIMIZERS))
    raise InvalidInputError(
        f"Unknown sam {sam!r}. Choose one of {names}, or pass a subclass of "
        "SharpnessAwareOptimizer."
    )


def make_settings(params: dict[str, Any], net, fmt, n_members):
    """What every phase has in common, from the parameters and the net's own."""
    schedule = params["lr_schedule"]
    if schedule is None:
        # The default recipe anneals; a configured net keeps its own learning rate.
        is_net = isinstance(params["estimator"], NeuralNetClassifier)
        schedule = "constant" if is_net else "cosine"
    if isinstance(schedule, LRScheduler):
        schedule = "constant"  # the callback sets the rate
    n_warmup = warmup_length(params["warmup_epochs"], net.max_epochs)
    prune_epoch = None
    if params["prune"]:
        between = 0 < n_warmup < net.max_epochs  # else half-way: there is no border
        prune_epoch = n_warmup if between else net.max_epochs // 2
    return Settings(
        n_epochs=net.max_epochs,
        batch_size=net.batch_size,
        rho=member_rho(params["rho"], n_members),
        warmup=params["warmup"],
        lr_schedule=resolve_schedule(schedule),
        transform=_transform(params["train_transform"], fmt),
        precision=resolve_precision(params["precision"], net.device, fmt),
        compile=net.module__compile,
        prune=params["prune"],
        prune_epoch=prune_epoch,
        averaging=resolve_averaging(params["weight_averaging"]),
    )


def _transform(train_transform, fmt):
    transform = resolve_transform(train_transform)
    if isinstance(transform, PictureTransform) and len(fmt.shape or ()) != 3:
        raise InvalidInputError(
            f"train_transform={train_transform!r} is for pictures (C, H, W), but X is "
            f"{fmt}."
        )
    return transform
