"""A frozen trunk that all members share: one feature pass, one head per member."""

import copy
from dataclasses import replace

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.training_data import (
    DeviceData,
    TrainingData,
    map_arrays,
    rows_at_once,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.members.state import loose_buffers, put_buffers
from sklearn_sharpbalance.runtime.devices import autocast
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import with_state_metadata

__all__ = ["Trunk", "TrunkedModule", "as_trunk", "with_features", "with_trunk"]

FEATURE_BATCH = 512


class Trunk:
    """A module in evaluation mode whose weights never change.

    The module is changed in place: frozen and moved to the device.
    """

    def __init__(self, module, device, precision="float32"):
        self.module = module.eval().requires_grad_(False).to(device)
        self.device, self.precision = torch.device(device), precision

    def __call__(self, x):
        """Return the features of a batch on the device."""
        with torch.no_grad(), autocast(self.precision, self.device):
            features = call_trunk(self.module, x)
        return features.float()

    def features(self, X, item_shape=None, transform=None):
        """Return the features (N, ...) of arrays or of a Dataset.

        ``transform`` augments each batch before the trunk, by the global generators.
        """
        data = TrainingData.unlabeled(X, item_shape)
        batch = rows_at_once(data, FEATURE_BATCH)
        features = []
        for x, rows in DeviceData(data, self.device).in_order(batch):
            augment = EpochAugment(transform, (1, len(rows)), self.device)
            features.append(self(augment.batch(0, x)).cpu().numpy())
        return np.concatenate(features)

    def take_weights(self, fitted):
        """Copy the weights of the trunk that heads were fitted to."""
        try:
            self.load_state(fitted.state())
        except RuntimeError as error:
            raise InvalidInputError(
                "warm_start=True continues with heads that were fitted to the trunk of "
                f"the last fit, but shared_trunk makes another network: {error}. Set "
                "warm_start=False."
            ) from error

    def state(self):
        """Return the weights, and the buffers that are not in the state dict."""
        weights = self.module.state_dict()
        loose = {k: v for k, v in self.module.named_buffers() if k not in weights}
        return {"module": weights, "buffers": loose}

    def load_state(self, state):
        """Load a result of :meth:`state` of a trunk of the same class."""
        weights = with_state_metadata(state["module"], self.module)
        self.module.load_state_dict(weights)
        put_buffers(self.module, state.get("buffers", {}), self.device)

    def to(self, device):
        """Move to another device."""
        self.module.to(device)
        self.device = torch.device(device)
        return self

    def __sklearn_clone__(self):
        return self  # cloned nets share the trunk

    def __getstate__(self):
        # So that a pickle can be loaded without a GPU.
        module = copy.deepcopy(self.module).cpu()
        return vars(self) | {"module": module, "device": torch.device("cpu")}


def call_trunk(module, x):
    """Return the output of a trunk for a tensor, or for a dictionary of keywords.

    It may change its copy in place: ``x`` may be the user's, or needed again.
    """
    if isinstance(x, dict):
        return module(**map_arrays(torch.clone, x))
    return module(x.clone() if x.is_floating_point() else x.float())


class TrunkedModule(nn.Module):
    """The shared trunk, not copied, and one member's head as one module.

    The other arguments are those of the :class:`MemberModule` that is the head.
    """

    def __init__(self, trunk, **member):
        super().__init__()
        self.trunk = trunk.module
        self.head = MemberModule(**member)

    @property
    def module(self):
        """The module itself, as :class:`MemberModule` has its inner module here."""
        return self

    def forward(self, X=None, /, **inputs):
        """Return the logits of a tensor, or of a dictionary passed as keywords."""
        return self.head(call_trunk(self.trunk, inputs if X is None else X))

    def train(self, mode=True):
        """Set the mode of the head; the trunk stays in evaluation mode."""
        super().train(mode)
        self.trunk.eval()
        return self


def as_trunk(shared_trunk, seed, device, precision="float32"):
    """Return the trunk of a module, which is copied, or of a function that makes one.

    ``seed`` is that of a function that draws weights.
    """
    if shared_trunk is None:
        return None
    if isinstance(shared_trunk, nn.Module):
        module = copy.deepcopy(shared_trunk)
    elif callable(shared_trunk):
        with random_stream(device, seed=seed):
            module = shared_trunk()
    else:
        module = None
    if not isinstance(module, nn.Module):
        raise InvalidInputError(
            "shared_trunk must be None, an nn.Module or a function without arguments "
            f"that returns one, got {shared_trunk!r}."
        )
    return Trunk(module, device, precision)


def with_features(data, trunk):
    """Return training and validation data with features of the trunk as samples."""
    name = type(trunk.module).__name__
    try:
        X = trunk.features(data.X, data.item_shape)
    except Exception as error:
        raise InvalidInputError(
            f"The shared trunk {name} failed on X: {in_a_sentence(error)}. Check that "
            "it takes samples of the shape of X and returns one tensor with a row per "
            "sample."
        ) from error
    if len(X) != len(data):
        raise InvalidInputError(
            f"The shared trunk {name} returned {len(X)} rows for {len(data)} samples."
        )
    valid = data.valid
    if valid is not None:
        features = trunk.features(valid.X, valid.item_shape)
        valid = replace(valid, X=features, item_shape=None)
    return replace(data, X=X, valid=valid, item_shape=None)


def with_trunk(head, trunk):
    """Return a net of samples from a fitted head, a net of features of the trunk."""
    net = clone(head).set_params(module=TrunkedModule, module__trunk=trunk)
    with random_stream(net.device):
        net.initialize()
    net.module_.head.load_state_dict(head.module_.state_dict())
    loose = loose_buffers(head).get("buffers", {})
    put_buffers(net.module_.head, loose, net.device)
    net.history.extend(head.history)
    net.callbacks_ = list(head.callbacks_)  # with their records
    return net
