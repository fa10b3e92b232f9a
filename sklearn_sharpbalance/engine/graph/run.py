"""Members that train together through the segments of one phase."""

import torch

from sklearn_sharpbalance.data.training_data import DeviceData
from sklearn_sharpbalance.engine.base import Team
from sklearn_sharpbalance.engine.callback_rng import CallbackDraws
from sklearn_sharpbalance.engine.graph.buffers import EpochFeed
from sklearn_sharpbalance.engine.graph.step import GraphedStep
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.runtime.devices import tf32
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["GraphTeam"]

COMPILED_SAVES = 0.15  # share of the time of a ResNet-18 epoch
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
        self.draws = CallbackDraws(self.source.device)
        self.step: GraphedStep | None = None
        self.feed: EpochFeed | None = None
        self.compiled = False

    def train(self, segment, masks, on_epoch=None):
        """Train one segment and return the members after it."""
        self.segment, self.masks = segment, masks
        self.members = list(self.members)  # the caller keeps the old list
        for session in self.sessions.values():
            session.segment, session.on_epoch = segment, on_epoch
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
                    self.draws.begin_epoch(session, epoch)
            for first, n_steps in feed.chunks(epoch):
                step.run(first, n_steps)
            losses = step.losses()
            with step.detached():
                for session, loss, lr in zip(sessions, losses, feed.last_lr):
                    self.draws.end_epoch(session, epoch, loss, lr)
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

        The estimate uses the duration of the last epoch, which ran without compiled
        modules. The first epoch is not used: it includes the capture. If a phase is cut
        into segments, its end is not known, and the end of the training is used.
        """
        segment, on_gpu = self.segment, self.source.device.type == "cuda"
        if self.compiled or segment.compile is not None or not on_gpu:
            return False
        if epoch != max(self.first_epoch + 2, segment.start):
            return False
        stop = segment.stop if segment.start == self.first_epoch else segment.n_epochs
        seconds = session.net.history[-1]["dur"]
        return seconds * (stop - epoch) * COMPILED_SAVES > COMPILE_SECONDS
