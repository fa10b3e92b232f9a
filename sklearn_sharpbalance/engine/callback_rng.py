"""Random numbers of callbacks if members train at the same time."""

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.runtime.rng import epoch_seed, random_stream, seed_generators

__all__ = ["CallbackDraws"]


class _GeneratorStates(NamedTuple):
    """States of the global generators; ``gpu`` is None on other devices."""

    cpu: torch.Tensor
    numpy: Any
    python: Any
    gpu: torch.Tensor | None


class CallbackDraws:
    """Gives callbacks the random numbers that they draw if their member trains alone.

    A member that trains alone uses the global generators for a whole epoch. If members
    train at the same time, the state of the generators is saved for each member after
    the start of its epoch, and restored at the end. Random augmentation is not
    affected: it has its own seeds.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._saved: dict[int, _GeneratorStates] = {}  # by the index of the member

    def preserve_generators(
        self, sessions: list[MemberSession]
    ) -> AbstractContextManager:
        """Return a context that restores the user's generators after callbacks."""
        drawing = any(session.net.callbacks_ for session in sessions)
        return random_stream(self.device) if drawing else nullcontext()

    def begin_epoch(self, session: MemberSession, epoch: int) -> None:
        """Begin the epoch of one member."""
        if not session.net.callbacks_:
            session.begin_epoch()
            return
        seed_generators(epoch_seed(session.state.seed, epoch), self.device)
        session.begin_epoch()
        self._saved[session.state.index] = self._get()

    def end_epoch(
        self, session: MemberSession, epoch: int, loss: float, lr: float
    ) -> None:
        """End the epoch of one member, after :meth:`begin_epoch`."""
        if session.net.callbacks_:
            self._set(self._saved.pop(session.state.index))
        session.end_epoch(epoch, loss, lr)

    def _get(self):
        on_gpu = self.device.type == "cuda"
        return _GeneratorStates(
            cpu=torch.get_rng_state(),
            numpy=np.random.get_state(),  # noqa: NPY002
            python=random.getstate(),
            gpu=torch.cuda.get_rng_state(self.device) if on_gpu else None,
        )

    def _set(self, states):
        torch.set_rng_state(states.cpu)
        np.random.set_state(states.numpy)  # noqa: NPY002
        random.setstate(states.python)
        if states.gpu is not None:
            torch.cuda.set_rng_state(states.gpu, self.device)
