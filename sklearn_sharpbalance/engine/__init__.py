"""Engines: how members train through a segment."""

from sklearn_sharpbalance.engine.base import Engine, EngineChoice
from sklearn_sharpbalance.engine.choice import ENGINES, choose_engine
from sklearn_sharpbalance.engine.graph.engine import GraphEngine
from sklearn_sharpbalance.engine.skorch_engine import SkorchEngine, train_member
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine

__all__ = [
    "ENGINES",
    "Engine",
    "EngineChoice",
    "GraphEngine",
    "SkorchEngine",
    "StackedEngine",
    "choose_engine",
    "train_member",
]
