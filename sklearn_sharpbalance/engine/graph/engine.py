"""Members on parallel streams of one GPU, with one CUDA graph per step.

A step of a ResNet-18 launches some two thousand kernels. Launching them one by one from
Python takes longer than running them. Replaying a captured graph avoids this cost.
"""

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance.data.training_data import ArrayRows, DeviceData
from sklearn_sharpbalance.engine.base import Engine, Team, TeamRun
from sklearn_sharpbalance.engine.graph.buffers import EpochFeed
from sklearn_sharpbalance.engine.graph.step import GraphedStep
from sklearn_sharpbalance.engine.support import (
    NOT_INSPECTED,
    base_optimizer,
    meta_module,
    shared_refusal,
)
from sklearn_sharpbalance.members.member_params import own_nets
from sklearn_sharpbalance.members.session import NO_REPORT, MemberSession
from sklearn_sharpbalance.runtime.devices import tf32
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import DROPOUT

__all__ = ["GraphEngine", "GraphTeam"]

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
    if not isinstance(data.X, np.ndarray | ArrayRows):
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


COMPILED_SAVES = 0.15  # fraction of the time of a ResNet-18 epoch
COMPILE_SECONDS = 40.0


class GraphTeam(Team):
    """Sessions of the members that have not stopped, and the step they share."""

    def __init__(self, net, members, data, segment, masks):
        super().__init__(net, members, data, segment, masks)
        self.first_epoch = self.epoch = segment.start
        self.sessions = {
            i: MemberSession(net, member, data, segment)
            for i, member in enumerate(members)
            if not member.stopped
        }
        self.source = DeviceData(data, torch.device(net.device))
        self.step: GraphedStep | None = None
        self.feed: EpochFeed | None = None
        self.compiled = False

    def train(self, segment, masks, report=NO_REPORT):
        """Train one segment and return the members after it."""
        self.segment, self.masks = segment, masks
        self.members = list(self.members)  # the caller keeps the old list
        for session in self.sessions.values():
            session.segment, session.report = segment, report
        device = self.source.device
        current = torch.cuda.device(device if device.type == "cuda" else -1)
        with current, random_stream(device), tf32(segment.precision):
            while self.sessions and self.epoch < segment.stop:
                self._run_until_stop()
                self._remove_stopped()
        for i, session in self.sessions.items():
            self.members[i] = session.finish()
        return self.members

    def close(self):
        """Restore modules and optimizers, and free the graphs."""
        if self.step is not None:
            self.step.close()
        self.step = self.feed = None

    def _run_until_stop(self):
        """Train until the segment ends or a member stops."""
        sessions = list(self.sessions.values())
        step, feed = self._open_step(sessions)
        for epoch in range(self.epoch, self.segment.stop):
            if not step.fused and self._compiling_pays(sessions[0], epoch):
                step.compile()
                self.compiled = True
            with step.detached():
                for session in sessions:
                    session.begin_epoch(epoch)
            for first, is_sam in feed.chunks(epoch):
                step.run(first, is_sam)
            losses = step.losses()  # waits for the device
            running = [session.state.index for session in sessions]
            sessions[0].report.reached(running, epoch + 1)
            with step.detached():
                for session, loss, lr in zip(sessions, losses, feed.last_lr):
                    session.end_epoch(epoch, loss, lr)
            self.epoch = epoch + 1
            if any(session.stopped for session in sessions):
                break
        step.detach()

    def _open_step(self, sessions):
        """Return the step and its feed; later segments use those of the first one."""
        if self.step is not None and self.feed is not None:
            self.feed.segment = self.segment
            self.step.attach()
        else:
            masks = [self.masks[i] for i in self.sessions]
            self.feed = EpochFeed(sessions, self.source, self.segment, masks)
            self.step = GraphedStep(sessions, self.feed, self.segment)
        return self.step, self.feed

    def _remove_stopped(self):
        """Remove members that stopped; the step of the others is captured again."""
        stopped = [i for i, session in self.sessions.items() if session.stopped]
        for i in stopped:
            self.members[i] = self.sessions.pop(i).finish()
        if stopped:
            self.close()

    def _compiling_pays(self, session, epoch):
        """Whether compiled modules would save more time than compiling takes.

        The estimate uses the duration of the second epoch: the first includes the
        capture. If a phase is cut into segments, its end is that of the training.
        """
        segment, on_gpu = self.segment, self.source.device.type == "cuda"
        if self.compiled or segment.compile is not None or not on_gpu:
            return False
        if epoch != max(self.first_epoch + 2, segment.start):
            return False
        stop = segment.stop if segment.start == self.first_epoch else segment.n_epochs
        seconds = session.net.history[-1]["dur"]
        return seconds * (stop - epoch) * COMPILED_SAVES > COMPILE_SECONDS
