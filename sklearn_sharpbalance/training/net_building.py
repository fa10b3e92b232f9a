"""Build the net of all members from the user's ``estimator``."""

from dataclasses import replace
from typing import Any

from sklearn_sharpbalance.data.input_statistics import (
    InputStatistics,
    input_statistics,
    n_pieces,
)
from sklearn_sharpbalance.engine.support import check_overrides
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.members.net import ensemble_callbacks, is_sharpness_aware
from sklearn_sharpbalance.members.state import MemberState, restore
from sklearn_sharpbalance.optim import OPTIMIZERS, SAM
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.net_settings import (
    check_callbacks,
    check_net_settings,
)

__all__ = [
    "base_rate",
    "build_net",
    "names_given",
    "renewed_member",
    "renewed_net",
    "resolve_sam",
]


def build_net(params, nested, fmt, data, n_classes, seed=0):
    """Return the net that every member is a copy of.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    nested : dict
        ``estimator__...`` parameters without their prefix.
    fmt : InputFormat
    data : TrainingData
        Samples to compute the statistics of the input from.
    n_classes : int
    seed : int, default=0
        Seed for items of a Dataset that are drawn at random.
    """
    n_more = 0
    if params["estimator"] is None and params["standardize"]:
        n_more = n_pieces(fmt, len(data))
    shape = (fmt.shape[0] + n_more,) if n_more else fmt.shape
    net = _users_net(params, nested, shape=shape, n_classes=n_classes)
    with random_stream(seed=seed):
        statistics = None
        if params["standardize"]:
            statistics = input_statistics(data, fmt, encode=n_more > 0)
    return _members_net(net, params, n_classes, statistics=statistics)


def renewed_net(fitted, params, nested, fmt, n_classes):
    """Return the net for the current parameters, with the statistics of the first call.

    Parameters
    ----------
    fitted : NeuralNetClassifier
        The net of the previous calls.
    params, nested, fmt, n_classes
        As in :func:`build_net`.
    """
    statistics, shape = None, fmt.shape
    if fitted.module__mean is not None:
        statistics = InputStatistics(
            fitted.module__mean,
            fitted.module__scale,
            clip=getattr(fitted, "module__clip", None),  # older files have neither
            pieces=getattr(fitted, "module__pieces", None),
        )
        if statistics.pieces is not None:
            shape = (fmt.shape[0] + statistics.pieces.shape[1],)
    net = _users_net(params, nested, shape=shape, n_classes=n_classes)
    return _members_net(net, params, n_classes, statistics=statistics)


def _users_net(params, nested, shape, n_classes):
    """Return the user's estimator as a skorch net; raise if members cannot use it."""
    net = as_skorch_net(
        params["estimator"],
        shape,
        n_classes,
        nested=nested,
        optimizer=params["optimizer"],
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
    """Return the learning rate of members without a setting of their own."""
    return net.get_params_for("optimizer").get("lr", net.lr)


def renewed_member(net, member: MemberState) -> MemberState:
    """Return a member with the net's learning rate and its own momentum."""
    fresh = restore(net, replace(member, optimizer=None)).optimizer_.param_groups
    state = member.optimizer
    assert state is not None  # the member has been trained
    groups = [
        {**group, "lr": new["lr"], "initial_lr": new["lr"]}
        for group, new in zip(state["param_groups"], fresh)
    ]
    return replace(member, optimizer={**state, "param_groups": groups})


def names_given(params: dict[str, Any], nested: dict[str, Any]) -> set[str]:
    """Return the names of the settings that the user gives to all or some members.

    Parameters
    ----------
    params, nested : dict
        As in :func:`build_net`.

    Examples
    --------
    >>> names_given({"member_params": [{"lr": 0.1}, {}]}, {"module__width": 8}) == {
    ...     "lr", "module__width"}
    True
    """
    own = params["member_params"] or []
    members = [own] if isinstance(own, dict) else own
    given = [each for each in (nested, *members) if isinstance(each, dict)]
    return {name for each in given for name in each if isinstance(name, str)}


def resolve_sam(sam):
    """Return the class of the sharpness-aware optimizer for a name or a class.

    None is SAM, the default for all data but pictures.
    """
    if sam is None:
        return SAM
    if isinstance(sam, str) and sam in OPTIMIZERS:
        return OPTIMIZERS[sam]
    if is_sharpness_aware(sam):
        return sam
    names = ", ".join(map(repr, OPTIMIZERS))
    raise InvalidInputError(
        f"Unknown sam {sam!r}. Choose one of {names}, or pass a subclass of "
        "SharpnessAwareOptimizer."
    )
