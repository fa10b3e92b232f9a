"""A frozen trunk that all members share: one feature pass, one head per member."""

import copy
import math
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.arrays import empty_on_disk
from sklearn_sharpbalance.autodiff.rows import map_chunks
from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.training_data import (
    DeviceData,
    TrainingData,
    map_arrays,
    n_rows,
    rows_at_once,
)
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceError
from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.members.state import loose_buffers, put_buffers
from sklearn_sharpbalance.networks.transfer import torchvision_trunk
from sklearn_sharpbalance.runtime.devices import autocast, free_memory
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import with_state_metadata

__all__ = ["Trunk", "TrunkedModule", "as_trunk", "with_features", "with_trunk"]

FEATURE_BATCH = 512
LARGEST_FRACTION = 0.25  # of the free memory, for features of a data set


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
        is_tensor = torch.is_tensor(features)
        if not is_tensor or features.ndim < 2 or len(features) != n_rows(x):
            found = tuple(features.shape) if is_tensor else type(features).__name__
            raise InvalidInputError(
                f"The shared trunk {self.name} returned {found} for {n_rows(x)} "
                "samples. Let it return one tensor with a row of features per sample, "
                "of shape (N, F) or (N, ...)."
            )
        return features.float()

    def features(self, X, item_shape=None, transform=None):
        """Return the features (N, ...) of arrays or of a Dataset.

        ``transform`` augments each batch before the trunk, by the global generators. A
        batch that does not fit into the memory of the device is halved.
        """
        data = TrainingData.unlabeled(X, item_shape)
        source = DeviceData(data, self.device)

        def compute(part):
            rows = np.arange(len(data))[None, part]
            augment = EpochAugment(transform, rows.shape, self.device)
            ((x, _),) = source.iterate(rows)
            return self(augment.batch(0, x)).cpu().numpy()

        batch = rows_at_once(data, FEATURE_BATCH)
        parts = map_chunks(compute, len(data), batch, setting="batch")
        first = next(parts)
        features, start = empty_features((len(data), *first.shape[1:])), 0
        for part in chain([first], parts):
            features[start : start + len(part)] = part
            start += len(part)
        return features

    def take_weights(self, fitted):
        """Copy the weights of the trunk that heads were fitted to."""
        try:
            self.load_state(fitted.state())
        except RuntimeError as error:
            raise InvalidInputError(
                "The heads were fitted to the trunk of the last fit, but shared_trunk "
                f"makes another network: {error}. Start again with a clone."
            ) from error

    @property
    def name(self):
        """Class of the network."""
        of_name = isinstance(self.module, MemberModule)
        return type(self.module.module if of_name else self.module).__name__

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


def as_trunk(shared_trunk, fmt, *, device, seed=0, precision="float32", stored=None):
    """Return the trunk of a module, a function that makes one, or a torchvision name.

    A module is copied. ``fmt`` is the format of the samples, and ``seed`` that of a
    function that draws weights. ``stored`` is the state to load, from a model file.
    """
    module = None
    if isinstance(shared_trunk, str):
        module = _named_trunk(shared_trunk, fmt, stored)
    elif isinstance(shared_trunk, nn.Module):
        module = copy.deepcopy(shared_trunk)
    elif callable(shared_trunk):
        with random_stream(device, seed=seed):
            module = shared_trunk()
    if not isinstance(module, nn.Module):
        raise InvalidInputError(
            "shared_trunk must be None, an nn.Module, a function without arguments "
            "that returns one, or the name of a torchvision model, got "
            f"{shared_trunk!r}."
        )
    trunk = Trunk(module, device, precision)
    if stored is not None:
        trunk.load_state(stored)
    return trunk


def _named_trunk(name, fmt, stored):
    """Return a pretrained network without head, which normalises images itself."""
    n_values = None
    if stored is not None:
        n_values = sum(map(torch.numel, stored["module"].values()))
    body, mean, scale = torchvision_trunk(name, n_values)
    largest = 255 if fmt.is_uint8_images else 1
    return MemberModule(lambda: body, mean=largest * mean, scale=largest * scale)


def empty_features(shape):
    """Return a float32 array without values, on disk if it would fill the memory."""
    if 4 * math.prod(shape) <= LARGEST_FRACTION * free_memory(torch.device("cpu")):
        return np.empty(shape, dtype=np.float32)
    return empty_on_disk(shape, np.float32)


def with_features(data, trunk):
    """Return training and validation data with features of the trunk as samples."""
    try:
        X = trunk.features(data.X, data.item_shape)
    except SharpBalanceError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The shared trunk {trunk.name} failed on X: {in_a_sentence(error)}. Check "
            "that it takes samples of the shape of X."
        ) from error
    if not np.isfinite([X.min(), X.max()]).all():
        raise InvalidInputError(
            f"The shared trunk {trunk.name} returned values that are not finite. Check "
            "the scale of X, which the trunk gets without standardisation."
        )
    valid = None if data.valid is None else with_features(data.valid, trunk)
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
