"""Choose an engine, its devices and the threads of a CPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from sklearn.base import clone
from torch import nn

from sklearn_sharpbalance.autodiff import is_out_of_memory
from sklearn_sharpbalance.engine.base import Engine, EngineChoice, EngineRun
from sklearn_sharpbalance.engine.graph.engine import GraphEngine
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.engine.skorch_engine import SkorchEngine
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.engine.support import meta_module
from sklearn_sharpbalance.exceptions import (
    OutOfDeviceMemoryError,
    SharpBalanceError,
    UnsupportedEngineError,
)
from sklearn_sharpbalance.members.session import NO_REPORT
from sklearn_sharpbalance.runtime.devices import tf32
from sklearn_sharpbalance.runtime.rng import lending_process_state, random_stream

__all__ = [
    "ENGINES",
    "SpreadEngine",
    "choose_engine",
    "choose_threads",
    "explain_out_of_memory",
]

# In the order in which "auto" tries them; the last one supports every ensemble.
ENGINES: dict[str, type[Engine]] = {
    "stacked": StackedEngine,
    "graph": GraphEngine,
    "skorch": SkorchEngine,
}
# Multiplications of a matrix product below which one thread is used. For such networks
# a second thread makes no difference on a quiet machine, and a fit slower if other
# processes use the cores, since threads wait for each other at every product
# (examples/benchmarks/bench_threads.py).
SMALL_PRODUCT = 2**25

Result = TypeVar("Result")


def choose_engine(name, net, data, training, *, any_device=False, devices=()):
    """Return the engine that trains these members, and why.

    Parameters
    ----------
    name : str
        "auto" or a name of :data:`ENGINES`.
    net : NeuralNetClassifier
    data : TrainingData
    training : Segment
    any_device : bool, default=False
        Whether a worker uses its best device instead of the net's.
    devices : sequence of str
        With more than one, the members are distributed over them.

    Returns
    -------
    engine : Engine
    choice : EngineChoice
    """
    kind, reason = _choose(name, net, data, training)
    n_stacked = len(training.rho) if kind is StackedEngine else 1
    threads = choose_threads(net, training.batch_size, n_stacked)
    choice = EngineChoice(kind.name, reason, threads)
    if len(devices) > 1:
        # One process uses all devices: with joblib each member would have a process.
        return SpreadEngine(kind(), list(devices)), choice
    if kind is SkorchEngine:
        jobs = MemberJobs(any_device=any_device, threads=threads)
        return SkorchEngine(jobs), choice
    return kind(), choice


def _choose(name, net, data, training):
    """Return the class of the engine, and the reason."""
    if name != "auto":
        reason = ENGINES[name].refusal(net, data, training)
        if reason is not None:
            raise UnsupportedEngineError(
                f"engine={name!r} cannot train this ensemble: {reason}. Use "
                "engine='auto' or engine='skorch'."
            )
        return ENGINES[name], "asked for"
    refusals: list[str] = []
    for kind in ENGINES.values():
        reason = kind.refusal(net, data, training)
        if reason is None:
            return kind, "; ".join(refusals) or "the fastest that fits"
        refusals.append(f"not {kind.name}: {reason}")
    raise AssertionError("the skorch engine refuses nothing")


def choose_threads(net, batch_size: int, n_members: int = 1) -> int | None:
    """Return 1 if all matrix products of a step are small, else None.

    The choice depends on sizes only, not on the load of the machine: the number of
    threads changes rounding, and equal fits must have equal results.
    """
    if torch.device(net.device).type != "cpu":
        return None
    module = meta_module(net)
    if module is None:
        return None
    largest = 0
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            largest = max(largest, layer.in_features * layer.out_features)
        else:
            for weight in layer.parameters(recurse=False):
                if weight.ndim > 1:  # the cost of a convolution depends on the images
                    return None
    return 1 if largest * int(batch_size) * n_members < SMALL_PRODUCT else None


def explain_out_of_memory(train: Callable[[], Result], net, n_members: int) -> Result:
    """Return ``train()``; raise an error with advice if memory runs out."""
    try:
        return train()
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, SharpBalanceError) or not is_out_of_memory(error):
            raise
        failure = str(error).split("\n")[0] or type(error).__name__
    # Raised outside of the except block, because the caught error refers to the tensors
    # of the step.
    raise OutOfDeviceMemoryError(
        f"{n_members} members with batch_size={net.batch_size} do not fit into the "
        f"memory of {net.device} ({failure}). Lower `batch_size`, use a smaller "
        'network, precision="bf16" on a GPU, or engine="skorch", which trains one '
        "member at a time."
    )


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

    def train(self, segment, masks, report=NO_REPORT):
        """Train the members of all devices in parallel."""
        n = len(self.devices)

        def train_device(device):
            # A device that is listed twice trains its runs one after the other: they
            # share its random generator, which dropout uses.
            with lending_process_state():
                return {
                    d: run.train(segment, masks[d::n], report)
                    for d, run in enumerate(self.runs)
                    if self.devices[d] == device
                }

        devices = sorted(set(self.devices))
        parts = {}
        # Threads change the CPU's generator and torch's flags, and would restore each
        # other's values. Save them here, once for all threads.
        with (
            random_stream("cpu"),
            tf32(segment.precision),
            ThreadPoolExecutor(len(devices)) as pool,
        ):
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
