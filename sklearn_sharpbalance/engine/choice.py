"""Choose an engine by device, module and callbacks."""

import warnings

from sklearn_sharpbalance.engine.base import Engine, EngineChoice
from sklearn_sharpbalance.engine.devices import SpreadEngine, choose_threads
from sklearn_sharpbalance.engine.graph.engine import GraphEngine
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.engine.skorch_engine import SkorchEngine
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.exceptions import (
    SharpBalanceWarning,
    UnsupportedEngineError,
)

__all__ = ["ENGINES", "choose_engine"]

# In the order in which "auto" tries them; the last one supports every ensemble.
ENGINES: dict[str, type[Engine]] = {
    "stacked": StackedEngine,
    "graph": GraphEngine,
    "skorch": SkorchEngine,
}


def choose_engine(
    name, net, data, training, *, n_jobs=None, any_device=False, devices=()
):
    """Return the engine that trains these members, and why.

    Parameters
    ----------
    name : str
        "auto" or a name of :data:`ENGINES`.
    net : NeuralNetClassifier
    data : TrainingData
    training : Segment
    n_jobs : int or None, default=None
        Jobs of the skorch engine, as in joblib.
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
    _warn_of_jobs(n_jobs, kind, devices)
    n_stacked = len(training.rho) if kind is StackedEngine else 1
    threads = choose_threads(net, training.batch_size, n_stacked)
    choice = EngineChoice(kind.name, reason, threads)
    if len(devices) > 1:
        # One process uses all devices: with joblib each member would have a process.
        return SpreadEngine(kind(), list(devices)), choice
    if kind is SkorchEngine:
        jobs = MemberJobs(n_jobs, any_device=any_device, threads=threads)
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


def _warn_of_jobs(n_jobs, kind, devices):
    """Warn if the engine does not use ``n_jobs``."""
    if n_jobs in (None, 1) or (kind is SkorchEngine and len(devices) <= 1):
        return
    what = f"engine={kind.name!r}" if len(devices) <= 1 else "a list of devices"
    warnings.warn(
        f"n_jobs={n_jobs} has no effect with {what}, which trains all members at once "
        "in this process. Leave n_jobs out, or pass engine='skorch' and one device to "
        "train members in processes.",
        SharpBalanceWarning,
        stacklevel=5,
    )
