"""What the members of a joint training see: samples, or features of a shared trunk."""

from torch.utils.data import Dataset

from sklearn_sharpbalance.data.inputs import InputFormat, check_X
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.members.shared_trunk import with_features
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.prepare import Inputs, Samples

__all__ = ["inputs_of_trunk", "one_device", "read_unlabeled"]


def one_device(device) -> str:
    """Return the device of all members; raise if more than one is given."""
    devices = resolve_devices(device)
    if len(devices) > 1:
        raise InvalidInputError(
            f"Joint training runs on one device, but got device={device!r}. Pass one "
            "of them."
        )
    return devices[0]


def inputs_of_trunk(
    trunk, samples: Samples, unlabeled, *, transform, device, seed
) -> Inputs:
    """Return the features that a shared trunk computes from samples.

    Without augmentation the features are the same in every epoch, and batches are read
    from them. Else the trunk computes them from each batch.

    Parameters
    ----------
    trunk : Trunk
    samples : Samples
    unlabeled : TrainingData or None
    transform : callable or None
        Augmentation.
    device : str
    seed : int
        For items of a Dataset that are drawn at random.
    """
    with random_stream(device, seed=seed):
        data = with_features(samples.data, trunk)
    shape = data.X.shape[1:]
    read = samples.data if transform is not None else data
    if unlabeled is not None and transform is None:
        with random_stream(device, seed=seed):
            unlabeled = with_features(unlabeled, trunk)
    return Inputs(
        data=data,
        format=InputFormat("array", shape, shape),
        read=read,
        unlabeled=unlabeled,
        trunk=trunk,
    )


def read_unlabeled(estimator, X_unlabeled, given: Samples):
    """Return validated samples without labels; None if the loss does not use them."""
    loss, X, fmt = estimator.loss, given.data.X, given.format
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


def _layout(X, fmt):
    if fmt.kind == "dict":
        return f"a dictionary of {sorted(X)}"
    return f"samples of shape {fmt.given_shape}"
