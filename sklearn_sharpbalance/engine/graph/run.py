"""Members that train together through the segments of one phase."""

import numpy as np
import torch

from sklearn_sharpbalance.data.training_data import DeviceData
from sklearn_sharpbalance.engine.callback_rng import CallbackDraws
from sklearn_sharpbalance.engine.graph.buffers import EpochFeed
from sklearn_sharpbalance.engine.graph.step import GraphedStep
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.runtime.precision import tf32
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["GraphRun"]

COMPILED_SAVES = 0.15  # of the time of a ResNet-18 epoch
COMPILE_SECONDS = 40.0


class GraphRun:
    """Sessions of all members, and the step that those share that have not stopped.

    Parameters
    ----------
    net : NeuralNetClassifier
    states : list of MemberState
    data : TrainingData
    phase : Segment
        The first segment.
    masks : ndarray of shape (M, N), dtype bool
    """

    def __init__(self, net, states, data, phase, masks):
        self.data, self.phase, self.masks = data, phase, masks
        self.first_epoch = self.epoch = phase.start
        self.results = list(states)
        self.sessions = {
            i: MemberSession(net, state, data, phase)
            for i, state in enumerate(states)
            if not state.stopped
        }
        self.source = DeviceData(data, torch.device(net.device))
        self.draws = CallbackDraws(self.source.device)
        self.step: GraphedStep | None = None
        self.feed: EpochFeed | None = None
        self.compiled = False

    def leads_to(self, states, data, phase, masks):
        """Whether a segment continues where this run stopped."""
        return (
            states is self.results
            and data is self.data
            and phase.continues(self.phase)
            and np.array_equal(masks, self.masks)
        )

    def train(self, phase, on_epoch):
        """Train one segment; returns the members after it."""
        self.phase = phase
        self.results = list(self.results)  # the caller has the one before
        for session in self.sessions.values():
            session.phase, session.on_epoch = phase, on_epoch
        device = self.source.device
        current = torch.cuda.device(device if device.type == "cuda" else -1)
        with current, random_stream(device), tf32(phase.precision):
            while self.sessions and self.epoch < phase.stop:
                self._run_until_stop()
                self._let_go()
        for i, session in self.sessions.items():
            self.results[i] = session.finish()
        return self.results

    def close(self):
        """Free the graph; modules and optimizers are as they were found."""
        if self.step is not None:
            self.step.close()
        self.step = self.feed = None

    def _run_until_stop(self):
        """Train until the segment ends or a member stops."""
        sessions = list(self.sessions.values())
        step, feed = self._awake(sessions)
        for epoch in range(self.epoch, self.phase.stop):
            if not step.fused and self._compiling_pays(sessions[0], epoch):
                step.compile()
                self.compiled = True
            with step.at_rest():
                for session in sessions:
                    self.draws.begin_epoch(session, epoch)
            for first, n_steps in feed.pieces(epoch):
                step.run(first, n_steps)
            losses = step.losses()
            with step.at_rest():
                for session, loss, lr in zip(sessions, losses, feed.last_lr):
                    self.draws.end_epoch(session, epoch, loss, lr)
            self.epoch = epoch + 1
            if any(session.stopped for session in sessions):
                break
        step.rest()

    def _awake(self, sessions):
        """The step and its feed: made for the first segment, resumed for the others."""
        if self.step is not None and self.feed is not None:
            self.feed.phase = self.phase
            self.step.wake()
        else:
            masks = [self.masks[i] for i in self.sessions]
            self.feed = EpochFeed(sessions, self.source, self.phase, masks)
            self.step = GraphedStep(sessions, self.feed, self.phase)
        return self.step, self.feed

    def _let_go(self):
        """Remove members that stopped; the others are captured again."""
        stopped = [i for i, session in self.sessions.items() if session.stopped]
        for i in stopped:
            self.results[i] = self.sessions.pop(i).finish()
        if stopped:
            self.close()

    def _compiling_pays(self, session, epoch):
        """Whether what compiled modules would save is more than compiling takes.

        Judged by the epoch before, which the graph without compiled modules ran; the
        first also captures and is not used. If a phase is cut into segments, its end
        is not known, and that of the training stands for it.
        """
        phase, on_gpu = self.phase, self.source.device.type == "cuda"
        if self.compiled or phase.compile is not None or not on_gpu:
            return False
        if epoch != max(self.first_epoch + 2, phase.start):
            return False
        stop = phase.stop if phase.start == self.first_epoch else phase.n_epochs
        seconds = session.net.history[-1]["dur"]
        return seconds * (stop - epoch) * COMPILED_SAVES > COMPILE_SECONDS
