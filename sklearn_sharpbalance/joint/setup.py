"""Preparation of a joint fit: validation, data, net and trainer."""

from dataclasses import replace
from functools import partial

import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance.data.inputs import InputFormat, check_X
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.support import callback_refusal
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.joint.members import JointObjective
from sklearn_sharpbalance.joint.stacked_team import choose_team
from sklearn_sharpbalance.joint.trainer import JointTrainer
from sklearn_sharpbalance.members.schedules import check_factors
from sklearn_sharpbalance.members.shared_trunk import as_trunk, with_features
from sklearn_sharpbalance.persistence.fingerprint import describe_samples
from sklearn_sharpbalance.runtime.devices import resolve_devices, resolve_precision
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.net_building import build_net
from sklearn_sharpbalance.training.picture_recipe import picture_recipe
from sklearn_sharpbalance.training.plan import cut_length, plan_segments
from sklearn_sharpbalance.training.progress import has_callbacks
from sklearn_sharpbalance.training.setup import (
    FitSetup,
    check_same_classes,
    first_members,
    make_checkpoints,
    make_training,
    split_and_encode,
    training_data,
)
from sklearn_sharpbalance.training.state import draw_seeds

__all__ = ["prepare_joint"]

LEARNING_RATE = 0.003


def prepare_joint(
    estimator, params, nested, aggregation, *, X, y, sample_weight, X_unlabeled
) -> FitSetup:
    """Validate everything and build what the fit needs, before any training.

    Parameters
    ----------
    estimator : DiversifiedEnsembleClassifier
        For scikit-learn's validation, and for fitted weights to start from.
    params : dict
        Parameters of the estimator, with defaults for those that it does not have.
    nested : dict
        ``estimator__...`` parameters without their prefix.
    aggregation : Aggregation
    X, y, sample_weight, X_unlabeled
        Arguments of ``fit``.
    """
    data, fmt, classes = training_data(
        estimator,
        X,
        y,
        sample_weight=sample_weight,
        class_weight=params["class_weight"],
    )
    params = picture_recipe(params, nested, fmt=fmt)
    unlabeled = check_unlabeled(
        estimator, X_unlabeled, fmt=fmt, X=data.X, loss=params["loss"]
    )
    warm = estimator._warm_nets()
    if warm:
        check_same_classes(classes, estimator.classes_)
    seeds = draw_seeds(params["random_state"], params["n_estimators"])
    own = {name: params[name] for name in estimator.get_params(deep=False)}
    described = "none" if unlabeled is None else describe_samples(_given(unlabeled.X))
    saved = make_checkpoints(
        own, data, classes, seeds=seeds, warm_nets=warm, X_unlabeled=described
    )
    if saved is not None:
        seeds = saved.seeds
    data, fmt = split_and_encode(
        data,
        fmt,
        params,
        seeds=seeds,
        sample_weight=sample_weight,
        columns=estimator._warm_columns(),
    )
    if unlabeled is not None and fmt.columns is not None:
        unlabeled = replace(unlabeled, X=fmt.columns.transform(unlabeled.X))
    aggregation.check(data)  # before the trunk computes features, which may be slow
    aggregation.try_out(params["n_estimators"], len(classes))
    device = _one_device(params["device"])
    precision = resolve_precision(params["precision"], device, fmt)
    trunk = as_trunk(
        params["shared_trunk"],
        seed=seeds.selection,
        device=device,
        precision=precision,
    )
    is_made = trunk is not None and not isinstance(params["shared_trunk"], nn.Module)
    if is_made and warm and estimator.trunk_ is not None:
        trunk.take_weights(estimator.trunk_)
    read, seen_format = data, fmt
    if trunk is not None:
        with random_stream(device, seed=seeds.split):
            data = with_features(data, trunk)
        shape = data.X.shape[1:]
        seen_format = InputFormat("array", shape, shape)
    params = params | recipe(params, nested)
    net = build_net(
        params,
        nested,
        fmt=seen_format,
        data=data,
        n_classes=len(classes),
        seed=seeds.split,
    )
    n_members = params["n_estimators"]
    training = make_training(params, net, fmt=fmt, n_members=n_members)
    training = replace(training, name="joint", rho=(0.0,) * n_members)
    if trunk is not None and training.transform is None:
        # The features are the same in every epoch: batches are read from them.
        read = data
        if unlabeled is not None:
            with random_stream(device, seed=seeds.split):
                unlabeled = with_features(unlabeled, trunk)
    _check_callbacks(net)
    check_factors(training, len(data))
    team, choice = choose_team(net, data, training)
    trainer = JointTrainer(
        net,
        data,
        training,
        read=read,
        unlabeled=unlabeled,
        trunk=trunk,
        seeds=seeds,
        objective=JointObjective(params["loss"], params["diversity_weight"]),
        pair_members=params["pair_members"],
        team=team,
        make_members=partial(
            first_members,
            net=net,
            seeds=seeds,
            data=data,
            n_classes=len(classes),
            warm_nets=warm,
        ),
    )
    cut_every = cut_length(
        training.n_epochs,
        params["checkpoint_every"] if saved is not None else None,
        whole_phases=has_callbacks(estimator),
    )
    return FitSetup(
        params=params,
        trainer=trainer,
        plan=plan_segments(training, n_warmup=None, cut_every=cut_every),
        aggregation=aggregation,
        seeds=seeds,
        input_format=fmt,
        classes=classes,
        engine=choice,
        checkpoints=saved,
    )


def _one_device(device) -> str:
    """Return the device of all members; raise if more than one is given."""
    devices = resolve_devices(device)
    if len(devices) > 1:
        raise InvalidInputError(
            f"Joint training runs on one device, but got device={device!r}. Pass one "
            "of them."
        )
    return devices[0]


def recipe(params, nested):
    """Return defaults for optimizer and learning rate, if the user set none.

    The paper uses AdamW. SGD with momentum is unstable under the pair loss of SED,
    whose weight has no upper bound as the loss of a batch decreases.
    """
    if isinstance(params["estimator"], NeuralNetClassifier):
        return {}
    defaults = {"optimizer": torch.optim.AdamW, "lr": LEARNING_RATE}
    return {
        name: value
        for name, value in defaults.items()
        if params[name] is None and name not in nested
    }


def check_unlabeled(estimator, X_unlabeled, fmt, X, loss):
    """Return validated samples without labels; None if the loss does not use them."""
    if not DIVERSITY_LOSSES[loss].needs_unlabeled:
        return None
    if X_unlabeled is None:
        raise InvalidInputError(
            f"loss={loss!r} needs samples without labels, but got X_unlabeled=None. "
            "Pass X_unlabeled to fit, with the same layout as X, or use loss='sed', "
            "which needs no such samples."
        )
    if isinstance(X_unlabeled, Dataset):
        X_unlabeled = _Labeled(X_unlabeled)
    with random_stream(seed=0):
        X_unlabeled, found = check_X(estimator, X_unlabeled, reset=False, fitted=fmt)
    if fmt.kind == "frame" and found.given_shape == fmt.given_shape:
        if found.kind == "table":  # an array in place of a frame of numbers
            X_unlabeled = dict(zip(X, X_unlabeled.T))
        found = fmt
    same = found.shape == fmt.shape and isinstance(X_unlabeled, dict) == isinstance(
        X, dict
    )
    if same and isinstance(X, dict):
        same = X.keys() == X_unlabeled.keys()
    if not same:
        raise InvalidInputError(
            "X_unlabeled must have the same layout as X, but X_unlabeled is "
            f"{_layout(X_unlabeled, found)} and X is {_layout(X, fmt)}."
        )
    item_shape = found.shape if found.kind == "dataset" else None
    return TrainingData.unlabeled(X_unlabeled, item_shape)


class _Labeled(Dataset):
    """A Dataset, with or without labels, as pairs (x, 0)."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        item = self.dataset[i]
        return (item[0] if isinstance(item, tuple | list) else item), 0


def _given(X):
    """Return the samples as the user passed them."""
    return X.dataset if isinstance(X, _Labeled) else X


def _layout(X, fmt):
    if fmt.kind == "dict":
        return f"a dictionary of {sorted(X)}"
    return f"samples of shape {fmt.given_shape}"


def _check_callbacks(net):
    reason = callback_refusal(net)
    if reason is not None:
        raise InvalidInputError(
            "Joint training calls callbacks only at the start and the end of an epoch, "
            f"but {reason}. Remove that callback. For a learning rate schedule, pass a "
            "name or a function of progress as lr_schedule."
        )
