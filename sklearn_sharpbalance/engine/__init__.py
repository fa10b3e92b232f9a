"""Engines: how a phase of training runs."""

from sklearn_sharpbalance.engine.base import Engine, EngineChoice
from sklearn_sharpbalance.engine.choice import choose_engine
from sklearn_sharpbalance.engine.one_by_one import SkorchEngine

__all__ = ["Engine", "EngineChoice", "SkorchEngine", "choose_engine"]
