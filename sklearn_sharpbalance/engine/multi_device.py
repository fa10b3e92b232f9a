"""Members on several devices, each device with an engine of its own."""

from concurrent.futures import ThreadPoolExecutor

import torch
from sklearn.base import clone

from sklearn_sharpbalance.engine.base import Engine
from sklearn_sharpbalance.runtime.precision import tf32
from sklearn_sharpbalance.runtime.process_state import lending_process_state
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["SpreadEngine"]


class SpreadEngine(Engine):
    """Deals the members to devices and trains all devices at once, in threads.

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
        """Left to the engine inside."""
        return None

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train member i on device i modulo their number."""
        n = len(self.devices)
        places: dict[str, list[int]] = {}
        for d in range(min(n, len(states))):
            places.setdefault(_full_name(self.devices[d]), []).append(d)

        def train(device):
            # One after the other on a device that is named twice: it has one generator
            # of random numbers, from which dropout draws.
            own = clone(net).set_params(device=device)
            with lending_process_state():
                return {
                    d: self.engine.run_phase(
                        own, states[d::n], data, phase, masks[d::n], on_epoch
                    )
                    for d in places[device]
                }

        # Threads change the CPU's generator and torch's flags, and put each other's
        # back: here it is kept for all of them.
        precision = tf32(phase.precision)
        with random_stream("cpu"), precision, ThreadPoolExecutor(len(places)) as pool:
            parts = {d: p for done in pool.map(train, places) for d, p in done.items()}
        return [parts[i % n][i // n] for i in range(len(states))]

    def release(self):
        """Free what the engine inside has kept."""
        self.engine.release()


def _full_name(device):
    """One name for one device: "cpu:0" is the CPU, "cuda" the current GPU."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return f"cuda:{torch.cuda.current_device()}"
    return device.type if device.type == "cpu" else str(device)
