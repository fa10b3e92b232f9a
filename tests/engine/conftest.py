"""What tests of the graph engine share."""

import pytest

from sklearn_sharpbalance.engine.graph import run as graph_run
from sklearn_sharpbalance.engine.graph.step import GraphedStep


@pytest.fixture
def steps(monkeypatch):
    """The steps that were built, which on a GPU is when graphs are captured."""
    built = []

    class Counted(GraphedStep):
        def __init__(self, *args):
            super().__init__(*args)
            built.append(self)

    monkeypatch.setattr(graph_run, "GraphedStep", Counted)
    return built
