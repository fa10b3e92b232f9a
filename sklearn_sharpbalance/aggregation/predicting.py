"""Logits of all members on new data, in bounded memory."""

import warnings

import numpy as np
import torch
from skorch import NeuralNetClassifier

from sklearn_sharpbalance.autodiff import in_chunks
from sklearn_sharpbalance.data.training_data import (
    DeviceData,
    TrainingData,
    rows_at_once,
)
from sklearn_sharpbalance.engine.stacking import StackedNetwork, stackable_layers
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.members.outputs import as_logits

__all__ = ["logits_on", "member_logits"]

PREDICT_BATCH = 2048
ROW_BLOCK = 16


def member_logits(nets, X, item_shape=None):
    """Return the logits of each net, (M, N, C) float32.

    Each batch is copied to the device once for all members. A batch that does not fit
    into the memory of the device is halved.

    Parameters
    ----------
    nets : list of NeuralNetClassifier
        Initialised nets; set to evaluation mode.
    X : ndarray, dict of ndarray, or Dataset
        Samples in the layout that the modules take.
    item_shape : tuple of int or None, default=None
        Shape of one item of a Dataset.
    """
    if len({str(net.device) for net in nets}) > 1:
        return np.concatenate([member_logits([net], X, item_shape) for net in nets])
    data = TrainingData.unlabeled(X, item_shape)
    source = DeviceData(data, nets[0].device)
    forward = _stacked_forward(nets, source) or _forward_one_by_one(nets)
    batch = rows_at_once(data, PREDICT_BATCH, ROW_BLOCK)
    block = min(batch, ROW_BLOCK)  # 1 if samples are so large that they pass singly

    def predict(part):
        rows = np.arange(len(data))[part]
        # Matrix products of another shape may round differently. With full blocks of
        # rows, a prediction does not depend on the other samples of the batch.
        padded = np.resize(rows, -(-len(rows) // block) * block)
        ((x, _),) = source.iterate(padded[None])
        return forward(x)[:, : len(rows)].transpose(0, 1).cpu()  # (B, M, C)

    for net in nets:
        net.module_.eval()  # not restored: another thread may be predicting
    with torch.inference_mode():
        logits = in_chunks(predict, len(data), batch, setting="batch")
        _warn_if_not_finite(logits)
    return np.ascontiguousarray(logits.transpose(0, 1).numpy())


def logits_on(nets, data: TrainingData):
    """Return the logits of each net on training or held-out data, (M, N, C)."""
    return member_logits(nets, data.X, data.item_shape)


def _warn_if_not_finite(logits):
    """Warn if the largest logit of a sample is not finite in (N, M, C).

    Other logits may be minus infinity, by which a network excludes a class.
    """
    broken = ~logits.amax(-1).isfinite()  # (N, M)
    if not broken.any():
        return
    n_nets, rows = int(broken.any(0).sum()), broken.any(1).nonzero()
    warnings.warn(
        f"{n_nets} of {broken.shape[1]} networks {'gives' if n_nets == 1 else 'give'} "
        f"no finite logits for {len(rows)} of {len(broken)} samples, the first is "
        f"sample {int(rows[0])}: their predictions are meaningless. If the training "
        "loss was finite, BatchNorm statistics have not converged: train for more "
        "steps, or increase the momentum of these layers. Otherwise check X for "
        "extreme values.",
        SharpBalanceWarning,
        stacklevel=3,
    )


def _forward_one_by_one(nets):
    def forward(x):
        return torch.stack([as_logits(net, net.infer(x)) for net in nets])

    return forward


def _names(layers):
    return [name for name, _ in layers]


def _layer_names(module):
    return _names(stackable_layers(module) or [])


def _stacked_forward(nets, source):
    """Return a forward pass of all members at once; None if they cannot be stacked."""
    modules = [net.module_.module for net in nets]
    layers = stackable_layers(modules[0])
    if layers is None:
        return None
    # The text names every layer with its sizes and options; members may differ there.
    same = len({(type(module), repr(module)) for module in modules}) == 1
    same = same and all(_layer_names(module) == _names(layers) for module in modules)
    takes_logits = not isinstance(nets[0].criterion_, torch.nn.NLLLoss)
    infers = all(type(net).infer is NeuralNetClassifier.infer for net in nets)
    fits = same and takes_logits and infers and not source.is_dataset
    if not fits:
        return None
    states = [module.state_dict() for module in modules]
    network = StackedNetwork(layers, states, source.device)

    def forward(x):
        x = nets[0].module_.standardize(x).flatten(1)
        return network(x.expand(len(nets), *x.shape))

    return forward
