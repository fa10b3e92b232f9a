"""Choosing an engine by device, module and callbacks."""

import warnings

from sklearn_sharpbalance.engine.base import Engine, EngineChoice
from sklearn_sharpbalance.engine.graph.engine import GraphEngine
from sklearn_sharpbalance.engine.multi_device import SpreadEngine
from sklearn_sharpbalance.engine.skorch_engine import SkorchEngine
from sklearn_sharpbalance.engine.stacked import StackedEngine
from sklearn_sharpbalance.exceptions import (
    SharpBalanceWarning,
    UnsupportedEngineError,
)

__all__ = ["ENGINES", "choose_engine"]

# In the order in which "auto" tries them; the last one never refuses.
ENGINES: dict[str, type[Engine]] = {
    "stacked": StackedEngine,
    "graph": GraphEngine,
    "skorch": SkorchEngine,
}


def choose_engine(name, net, data, training, *, jobs=None, devices=()):
    """The engine that trains these members, and why.

    Parameters
    ----------
    name : str
        "auto" or a name of :data:`ENGINES`.
    net : NeuralNetClassifier
    data : TrainingData
    training : Segment
    jobs : MemberJobs or None
        Where the skorch engine trains and scores.
    devices : sequence of str
        More than one spreads the members.

    Returns
    -------
    engine : Engine
    choice : EngineChoice
    """
    if name != "auto":
        engine = ENGINES[name]
        reason = engine.refusal(net, data, training)
        if reason is not None:
            raise UnsupportedEngineError(
                f"engine={name!r} cannot train this ensemble: {reason}. Use "
                "engine='auto' or engine='skorch'."
            )
        return _make(engine, jobs, devices), EngineChoice(name, "asked for")
    refusals: list[str] = []
    for engine in ENGINES.values():
        reason = engine.refusal(net, data, training)
        if reason is None:
            why = "; ".join(refusals) or "the fastest that fits"
            return _make(engine, jobs, devices), EngineChoice(engine.name, why)
        refusals.append(f"not {engine.name}: {reason}")
    raise AssertionError("the skorch engine refuses nothing")


def _make(kind, jobs, devices):
    uses_jobs = kind is SkorchEngine and len(devices) <= 1
    if jobs is not None and jobs.n_jobs not in (None, 1) and not uses_jobs:
        what = f"engine={kind.name!r}" if len(devices) <= 1 else "a list of devices"
        warnings.warn(
            f"n_jobs={jobs.n_jobs} has no effect with {what}, which trains all members "
            "at once in this process. Leave n_jobs out, or pass engine='skorch' and "
            "one device to train members in processes.",
            SharpBalanceWarning,
            stacklevel=5,
        )
    if len(devices) > 1:
        # One process drives all devices: joblib would start one copy per member.
        return SpreadEngine(kind(), list(devices))
    return kind(jobs) if kind is SkorchEngine else kind()
