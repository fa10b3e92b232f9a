"""Members on parallel streams of one GPU, one CUDA graph a step.

A ResNet-18 step launches some two thousand kernels; launched one by one from Python
they take longer than they run. Captured once and replayed, they do not.
"""

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance.engine.base import Engine
from sklearn_sharpbalance.engine.feed import EpochFeed
from sklearn_sharpbalance.engine.graph_step import GraphedStep
from sklearn_sharpbalance.engine.refusals import meta_module, shared_refusal
from sklearn_sharpbalance.members.data import DeviceData
from sklearn_sharpbalance.members.own_settings import own_nets
from sklearn_sharpbalance.members.precision import tf32
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.members.state import seeded

__all__ = ["GraphEngine"]

COMPILED_SAVES = 0.15  # of the time of a ResNet-18 epoch
COMPILE_SECONDS = 40.0
RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.RNNBase)


class GraphEngine(Engine):
    """Trains all members at once, each on a stream of its own."""

    name = "graph"

    @classmethod
    def refusal(cls, net, data, settings):
        """Why this engine cannot train these members; None if it can."""
        if torch.device(net.device).type != "cuda":
            return f"the device is {net.device}, not cuda"
        if settings.precision == "fp16":
            return "fp16 decides on the host whether to skip a step"
        reasons = (module_refusal(own, data) for own in own_nets(net))
        return next((reason for reason in reasons if reason is not None), None)

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train all members side by side."""
        sessions = [MemberSession(net, s, data, phase, on_epoch) for s in states]
        running = [pair for pair in zip(sessions, masks) if not pair[0].stopped]
        device = torch.device(net.device)
        source = DeviceData(data, device)
        with seeded(device), tf32(phase.precision):
            while running and _epoch_of(running[0][0]) < phase.stop:
                # A member that stops leaves the graph: the others are captured anew.
                _run_until_stop(*zip(*running), source, phase)
                running = [pair for pair in running if not pair[0].stopped]
        return [session.finish() for session in sessions]


def module_refusal(net, data):
    """Why the step cannot be captured, whatever the device."""
    if not isinstance(data.X, np.ndarray):
        return "X is not one array"
    if getattr(net, "optimizer__dampening", 0):
        return "SGD's dampening treats the first step apart"
    return shared_refusal(net) or _random_refusal(net)


def _compiling_pays(session, phase, epoch):
    """Whether what compiled modules would save is more than compiling takes.

    Judged by the last epoch, which the graph without compiled modules ran; the first
    epoch of a stretch also captures and is not asked.
    """
    if phase.compile is not None or torch.device(session.net.device).type != "cuda":
        return False
    if epoch != phase.start + 2:
        return False
    seconds = session.net.history[-1]["dur"]
    return seconds * (phase.stop - epoch) * COMPILED_SAVES > COMPILE_SECONDS


def _epoch_of(session):
    return len(session.net.history)


def _run_until_stop(sessions, masks, source, phase):
    """Train until the phase ends or a member stops."""
    feed = EpochFeed(sessions, source, phase, masks)
    step = GraphedStep(sessions, feed, phase)
    for epoch in range(_epoch_of(sessions[0]), phase.stop):
        if _compiling_pays(sessions[0], phase, epoch):
            step.compile()
        for session in sessions:
            session.begin_epoch()
        for length in feed.pieces(epoch):
            step.run(length)
        losses = step.losses()
        with step.at_rest():
            for session, loss, lr in zip(sessions, losses, feed.last_lr):
                session.end_epoch(epoch, loss, lr)
        if any(session.stopped for session in sessions):
            break
    step.close()


def _random_refusal(net):
    module = meta_module(net)
    if module is None:
        return "the module cannot be built on the meta device to look at it"
    for layer in module.modules():
        if isinstance(layer, RANDOM_LAYERS) and getattr(layer, "p", 1) != 0:
            return f"{type(layer).__name__} draws random numbers inside the step"
    return None
