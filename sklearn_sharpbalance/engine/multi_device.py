"""Members on several devices, with one run per device."""

from concurrent.futures import ThreadPoolExecutor

import torch
from sklearn.base import clone

from sklearn_sharpbalance.engine.base import Engine, EngineRun
from sklearn_sharpbalance.runtime.precision import tf32
from sklearn_sharpbalance.runtime.process_state import lending_process_state
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["SpreadEngine"]


class SpreadEngine(Engine):
    """Distributes the members over devices, which train in parallel threads.

    Parameters
    ----------
    engine : Engine
        Trains the members of one device.
    devices : list of str
    """

    def __init__(self, engine, devices):
        super().__init__()
        self.engine, self.devices = engine, devices
        self.name = engine.name

    @classmethod
    def refusal(cls, net, data, training):
        """Return None: the engine of a single device was checked before."""
        return None

    def open(self, net, members, data, segment, masks):
        """Return a run with member i on device i modulo the number of devices."""
        return SpreadRun(self.engine, self.devices, net, members, data, segment, masks)


class SpreadRun(EngineRun):
    """One run per device, opened in the thread that trains it."""

    def __init__(self, engine, devices, net, members, data, segment, masks):
        super().__init__(net, members, data, segment, masks)
        self.engine = engine
        self.devices = [_full_name(device) for device in devices[: len(members)]]
        self.runs: dict[int, EngineRun] = {}

    def train(self, segment, masks, on_epoch=None):
        """Train the members of all devices in parallel."""
        self.segment, self.masks = segment, masks
        n = len(self.devices)

        def train_device(device):
            # A device that is listed twice trains its runs one after the other: they
            # share its random generator, which dropout uses.
            with lending_process_state():
                return {
                    d: self._run(d).train(segment, masks[d::n], on_epoch)
                    for d in range(n)
                    if self.devices[d] == device
                }

        devices = sorted(set(self.devices))
        # Threads change the CPU's generator and torch's flags, and would restore each
        # other's values. Save them here, once for all threads.
        with (
            random_stream("cpu"),
            tf32(segment.precision),
            ThreadPoolExecutor(len(devices)) as pool,
        ):
            parts = {}
            for trained in pool.map(train_device, devices):
                parts.update(trained)
        self.members = [parts[i % n][i // n] for i in range(len(self.members))]
        return self.members

    def _run(self, d):
        """Return the run of the members d, d + n, d + 2n, ... on n devices."""
        if d not in self.runs:
            own = slice(d, None, len(self.devices))
            self.runs[d] = self.engine.open(
                clone(self.net).set_params(device=self.devices[d]),
                self.members[own],
                self.data,
                self.segment,
                self.masks[own],
            )
        return self.runs[d]

    def close(self):
        """Close the run of every device."""
        for run in self.runs.values():
            run.close()


def _full_name(device):
    """Return one name for one device: "cpu:0" is the CPU, "cuda" the current GPU."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return f"cuda:{torch.cuda.current_device()}"
    return device.type if device.type == "cpu" else str(device)
