"""Members on several devices, with one run per device."""

from concurrent.futures import ThreadPoolExecutor

import torch
from sklearn.base import clone

from sklearn_sharpbalance.engine.base import Engine, EngineRun
from sklearn_sharpbalance.runtime.devices import tf32
from sklearn_sharpbalance.runtime.rng import lending_process_state, random_stream

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

    def open(self, net, members, data):
        """Return a run with member i on device i modulo the number of devices."""
        return SpreadRun(self.engine, self.devices, net, members, data)


class SpreadRun(EngineRun):
    """One run per device, in the thread that trains it."""

    def __init__(self, engine, devices, net, members, data):
        super().__init__(net, members, data)
        self.devices = [_full_name(device) for device in devices[: len(members)]]
        self.runs = [
            engine.open(clone(net).set_params(device=device), self._own(d), data)
            for d, device in enumerate(self.devices)
        ]

    def _own(self, d):
        """Return the members d, d + n, d + 2n, ... on n devices."""
        return self.members[d :: len(self.devices)]

    def train(self, segment, masks, on_epoch=None):
        """Train the members of all devices in parallel."""
        n = len(self.devices)

        def train_device(device):
            # A device that is listed twice trains its runs one after the other: they
            # share its random generator, which dropout uses.
            with lending_process_state():
                return {
                    d: run.train(segment, masks[d::n], on_epoch)
                    for d, run in enumerate(self.runs)
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

    def replace(self, members):
        """Continue with other members on every device."""
        super().replace(members)
        for d, run in enumerate(self.runs):
            run.replace(self._own(d))

    def make_room(self):
        """Free memory on every device."""
        for run in self.runs:
            run.make_room()

    def close(self):
        """Close the run of every device."""
        for run in self.runs:
            run.close()


def _full_name(device):
    """Return one name for one device: "cpu:0" is the CPU, "cuda" the current GPU."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return f"cuda:{torch.cuda.current_device()}"
    return device.type if device.type == "cpu" else str(device)
