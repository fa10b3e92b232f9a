"""Members on several devices, each device with an engine of its own."""

from concurrent.futures import ThreadPoolExecutor

from sklearn.base import clone

from sklearn_sharpbalance.engine.base import Engine

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
        self.engine, self.devices = engine, devices
        self.name = engine.name

    @classmethod
    def refusal(cls, net, data, settings):
        """Left to the engine inside."""
        return None

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train member i on device i modulo their number."""
        n = len(self.devices)

        def train(d):
            own = clone(net).set_params(device=self.devices[d])
            return self.engine.run_phase(
                own, states[d::n], data, phase, masks[d::n], on_epoch
            )

        used = range(min(n, len(states)))
        with ThreadPoolExecutor(len(used)) as pool:
            parts = list(pool.map(train, used))
        return [parts[i % n][i // n] for i in range(len(states))]
