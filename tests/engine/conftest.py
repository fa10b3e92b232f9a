"""Fixtures of the tests of the graph engine."""

import pytest

from sklearn_sharpbalance.engine.graph import engine as graph_engine
from sklearn_sharpbalance.engine.graph.step import GraphedStep


@pytest.fixture
def steps(monkeypatch):
    """Record the steps that are built; on a GPU graphs are captured then."""
    built = []

    class Counted(GraphedStep):
        def __init__(self, *args):
            super().__init__(*args)
            built.append(self)

    monkeypatch.setattr(graph_engine, "GraphedStep", Counted)
    return built
