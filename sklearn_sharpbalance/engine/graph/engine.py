"""Members on parallel streams of one GPU, with one CUDA graph per step.

A step of a ResNet-18 launches some two thousand kernels. Launching them one by one from
Python takes longer than running them. Replaying a captured graph avoids this cost.
"""

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance.engine.base import Engine, TeamRun
from sklearn_sharpbalance.engine.graph.run import GraphTeam
from sklearn_sharpbalance.engine.support import (
    NOT_INSPECTED,
    base_optimizer,
    meta_module,
    shared_refusal,
)
from sklearn_sharpbalance.members.own_settings import own_nets
from sklearn_sharpbalance.runtime.torch_internals import DROPOUT

__all__ = ["GraphEngine"]

# Layers that draw random numbers, unless this option is zero.
RANDOM_LAYERS = {
    DROPOUT: "p",
    nn.MultiheadAttention: "dropout",
    nn.RNNBase: "dropout",
    nn.RReLU: "upper",
}


class GraphEngine(Engine):
    """Trains all members at once, each on its own stream."""

    name = "graph"

    @classmethod
    def refusal(cls, net, data, training):
        """Return why this engine cannot train these members; None if it can."""
        if torch.device(net.device).type != "cuda":
            return f"the device is {net.device}, not cuda"
        if training.precision == "fp16":
            return "fp16 decides on the host whether to skip a step"
        reasons = (module_refusal(own, data) for own in own_nets(net))
        return next((reason for reason in reasons if reason is not None), None)

    def open(self, net, members, data):
        """Return a run that captures one step of a phase and replays it."""
        return TeamRun(GraphTeam, net, members, data)


def module_refusal(net, data):
    """Return why the step cannot be captured on any device; None if it can."""
    if not isinstance(data.X, np.ndarray):
        return "X is not one array"
    optimizer, options = base_optimizer(net)
    if getattr(net, "optimizer__dampening", options.get("dampening", 0)):
        return "SGD's dampening treats the first step differently"
    if optimizer is torch.optim.Adagrad:
        return "Adagrad reads its step count on the host"
    return shared_refusal(net) or _random_refusal(net)


def _random_refusal(net):
    """Return why a layer cannot be captured; None if all can."""
    module = meta_module(net)
    if module is None:
        return NOT_INSPECTED
    for layer in module.modules():
        name = type(layer).__name__
        for kind, option in RANDOM_LAYERS.items():
            if isinstance(layer, kind) and getattr(layer, option):
                return f"{name} draws random numbers inside the step"
        if isinstance(layer, nn.RNNBase):
            return f"{name} is not among the layers known to run in a graph"
    return None
