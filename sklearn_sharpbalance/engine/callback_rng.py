"""Random numbers of callbacks whose members train side by side."""

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.runtime.rng import epoch_seed, random_stream, seed_generators

__all__ = ["CallbackDraws"]


class CallbackDraws:
    """Lets callbacks draw what they draw where their member trains alone.

    Members that take turns have the one RNG for an epoch each. Here it is handed from
    one to the other, and each takes it up where it left it. A random augmentation of
    batches has draws of its own.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._left: dict[int, tuple[Any, ...]] = {}

    def own(self, sessions: list[MemberSession]) -> AbstractContextManager:
        """Context that keeps the user's generators from what callbacks draw."""
        drawing = any(session.net.callbacks_ for session in sessions)
        return random_stream(self.device) if drawing else nullcontext()

    def begin_epoch(self, session: MemberSession, epoch: int) -> None:
        """Begin the epoch of one member."""
        if not session.net.callbacks_:
            session.begin_epoch()
            return
        seed_generators(epoch_seed(session.state.seed, epoch), self.device)
        session.begin_epoch()
        self._left[session.state.index] = self._get()

    def end_epoch(
        self, session: MemberSession, epoch: int, loss: float, lr: float
    ) -> None:
        """End the epoch of one member, which began here."""
        if session.net.callbacks_:
            self._set(*self._left.pop(session.state.index))
        session.end_epoch(epoch, loss, lr)

    def _get(self):
        of_gpu = None
        if self.device.type == "cuda":
            of_gpu = torch.cuda.get_rng_state(self.device)
        legacy = np.random.get_state()  # noqa: NPY002
        return torch.get_rng_state(), legacy, random.getstate(), of_gpu

    def _set(self, of_cpu, of_numpy, of_python, of_gpu):
        torch.set_rng_state(of_cpu)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        if of_gpu is not None:
            torch.cuda.set_rng_state(of_gpu, self.device)
