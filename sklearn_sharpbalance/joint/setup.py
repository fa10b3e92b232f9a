"""What a joint fit settles before its first epoch."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset

from sklearn_sharpbalance.aggregation.soups import has_batch_statistics
from sklearn_sharpbalance.data.inputs import InputFormat, check_X
from sklearn_sharpbalance.data.training_data import TrainingData, n_rows
from sklearn_sharpbalance.data.validation_split import hold_out
from sklearn_sharpbalance.engine.support import callback_refusal
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.members.schedules import check_factors
from sklearn_sharpbalance.members.shared_trunk import Trunk, as_trunk, with_features
from sklearn_sharpbalance.members.state import own_draws
from sklearn_sharpbalance.persistence.fingerprint import describe_samples
from sklearn_sharpbalance.runtime.devices import resolve_devices, resolve_precision
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints
from sklearn_sharpbalance.training.fitting import (
    Seeds,
    build_net,
    draw_seeds,
    make_settings,
    training_data,
)
from sklearn_sharpbalance.training.plan import Settings
from sklearn_sharpbalance.training.setup import check_same_classes, make_checkpoints

__all__ = ["JointJob", "prepare_joint"]

LEARNING_RATE = 0.003


@dataclass(frozen=True)
class JointJob:
    """Everything that a joint fit has settled before its first epoch.

    Attributes
    ----------
    params : dict
        Parameters of the estimator.
    net : NeuralNetClassifier
        What every member, or its head, is a copy of.
    data : TrainingData
        What the members see: samples, or the trunk's features of them.
    read : TrainingData
        What batches are read from: the same, or samples yet to be augmented.
    unlabeled : TrainingData or None
        Like ``read``, without labels.
    trunk : Trunk or None
    settings : Settings
    seeds : Seeds
    input_format : InputFormat
    classes : ndarray of shape (C,)
    checkpoints : FitCheckpoints or None
    """

    params: dict[str, Any]
    net: Any
    data: TrainingData
    read: TrainingData
    unlabeled: TrainingData | None
    trunk: Trunk | None
    settings: Settings
    seeds: Seeds
    input_format: InputFormat
    classes: np.ndarray
    checkpoints: FitCheckpoints | None = None

    def as_trained(self, net) -> TrainingData:
        """The data as members normalised them, for what is made of their weights.

        Behind a trunk the augmentation comes first: features of augmented samples
        take the place of those of the samples, where nets like ``net`` need them.
        """
        transform = self.settings.transform
        if self.trunk is None or transform is None:
            return replace(self.data, transform=transform)
        if not has_batch_statistics(net):
            return self.data
        X = self.trunk.features(self.read.X, self.read.item_shape, transform)
        return replace(self.data, X=X)


def prepare_joint(
    estimator, params, nested, aggregation, X, y, sample_weight, X_unlabeled
) -> JointJob:
    """Validate everything and build what the fit needs, before any training."""
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
    seeds = seeds if saved is None else saved.seeds
    data = hold_out(data, params["validation_fraction"], seeds.split, sample_weight)
    aggregation.check(data)  # before all samples pass a trunk
    device = _one_device(params["device"])
    precision = resolve_precision(params["precision"], device, fmt)
    trunk = as_trunk(params["shared_trunk"], seeds.selection, device, precision)
    made = trunk is not None and not isinstance(params["shared_trunk"], nn.Module)
    if made and warm and estimator.trunk_ is not None:
        trunk.take_weights(estimator.trunk_)
    read, seen_format = data, fmt
    if trunk is not None:
        with own_draws(seeds.split, device):
            data = with_features(data, trunk)
        shape = data.X.shape[1:]
        seen_format = InputFormat("array", shape, shape)
    params = params | recipe(params, nested)
    given = (data.X, len(classes), data.weight, seeds.split)
    net = build_net(params, nested, seen_format, *given)
    settings = make_settings(params, net, fmt, params["n_estimators"])
    if trunk is not None and settings.transform is None:
        # Nothing changes from epoch to epoch: the trunk has done its work.
        read = data
        if unlabeled is not None:
            with own_draws(seeds.split, device):
                unlabeled = with_features(unlabeled, trunk)
    _check_callbacks(net)
    check_factors(settings, len(data))
    return JointJob(
        params, net, data, read, unlabeled, trunk, settings, seeds, fmt, classes, saved
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
    with own_draws():
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
    labels = np.zeros(n_rows(X_unlabeled), dtype=np.int64)
    item_shape = found.shape if found.kind == "dataset" else None
    return TrainingData(X_unlabeled, labels, item_shape=item_shape)


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
