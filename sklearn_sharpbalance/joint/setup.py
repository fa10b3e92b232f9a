"""What a joint fit settles before its first epoch."""

from dataclasses import replace
from functools import partial

import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance.data.inputs import InputFormat, check_X
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.data.validation_split import hold_out
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
from sklearn_sharpbalance.training.plan import cut_length, plan_segments
from sklearn_sharpbalance.training.progress import has_callbacks
from sklearn_sharpbalance.training.setup import (
    FitSetup,
    check_same_classes,
    first_members,
    make_checkpoints,
    make_training,
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
        Its parameters, and those that it does not offer.
    nested : dict
        Its ``estimator__...`` parameters.
    aggregation : Aggregation
    X, y, sample_weight, X_unlabeled
        What ``fit`` was given.
    """
    data, fmt, classes = training_data(
        estimator, X, y, sample_weight, params["class_weight"]
    )
    unlabeled = check_unlabeled(estimator, X_unlabeled, fmt, data.X, params["loss"])
    warm = estimator._warm_nets()
    if warm:
        check_same_classes(classes, estimator.classes_)
    seeds = draw_seeds(params["random_state"], params["n_estimators"])
    own = estimator.get_params(deep=False)  # those that an ensemble of this kind has
    others = "none" if unlabeled is None else describe_samples(_given(unlabeled.X))
    saved = make_checkpoints(own, data, classes, seeds, warm, X_unlabeled=others)
    if saved is not None:
        seeds = saved.seeds
    data = hold_out(data, params["validation_fraction"], seeds.split, sample_weight)
    aggregation.check(data)  # before all samples pass a trunk
    aggregation.try_out(params["n_estimators"], len(classes))
    device = _one_device(params["device"])
    precision = resolve_precision(params["precision"], device, fmt)
    trunk = as_trunk(params["shared_trunk"], seeds.selection, device, precision)
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
        seen_format,
        data.X,
        len(classes),
        weight=data.weight,
        seed=seeds.split,
    )
    training = make_training(params, net, fmt, params["n_estimators"])
    training = replace(training, name="joint", rho=(0.0,) * params["n_estimators"])
    if trunk is not None and training.transform is None:
        # Features do not change from epoch to epoch: members read them directly.
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
        make_members=partial(first_members, net, seeds, data, len(classes), warm),
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
    """The device that all members share, since they train in one graph."""
    devices = resolve_devices(device)
    if len(devices) > 1:
        raise InvalidInputError(
            f"Joint training runs on one device, but got device={device!r}. Name one "
            "of them."
        )
    return devices[0]


def recipe(params, nested):
    """Optimizer and rate of a joint fit, where the user left them open.

    AdamW, as the paper has it. Momentum alone does not bear the pair loss of SED,
    whose weight grows without limit while the loss of a batch falls.
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
    """Samples without labels, laid out like X; None for a loss that needs none."""
    if not DIVERSITY_LOSSES[loss].needs_unlabeled:
        return None
    if X_unlabeled is None:
        raise InvalidInputError(
            f"loss={loss!r} drives members apart on samples without labels, but got "
            "X_unlabeled=None. Pass them to fit as X_unlabeled, laid out like X, or "
            "use loss='sed', which needs none."
        )
    if isinstance(X_unlabeled, Dataset):
        X_unlabeled = _Labeled(X_unlabeled)
    with random_stream(seed=0):
        X_unlabeled, found = check_X(estimator, X_unlabeled, reset=False, fitted=fmt)
    same = found.shape == fmt.shape and isinstance(X_unlabeled, dict) == isinstance(
        X, dict
    )
    if same and isinstance(X, dict):
        same = X.keys() == X_unlabeled.keys()
    if not same:
        raise InvalidInputError(
            f"X_unlabeled must be laid out like X: got {_layout(X_unlabeled, found)} "
            f"beside {_layout(X, fmt)}."
        )
    item_shape = found.shape if found.kind == "dataset" else None
    return TrainingData.unlabeled(X_unlabeled, item_shape)


class _Labeled(Dataset):
    """Items of a Dataset, with labels or without, as pairs that readers expect."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        item = self.dataset[i]
        return (item[0] if isinstance(item, tuple | list) else item), 0


def _given(X):
    """Samples as the user passed them."""
    return X.dataset if isinstance(X, _Labeled) else X


def _layout(X, fmt):
    if isinstance(X, dict):
        return f"a dictionary of {sorted(X)}"
    return f"samples of shape {fmt.given_shape}"


def _check_callbacks(net):
    reason = callback_refusal(net)
    if reason is not None:
        raise InvalidInputError(
            "Joint training calls callbacks at the start and the end of an epoch, but "
            f"{reason}. Remove that callback; lr_schedule takes a name or a function "
            "of progress."
        )
