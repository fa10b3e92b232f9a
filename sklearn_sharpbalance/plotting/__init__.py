"""Displays: figures of ensembles, with the interface of scikit-learn's displays.

``__init__`` takes arrays, ``from_estimator`` and others compute them, and
``plot(ax=None)`` draws the figure. All of them return the display, and pass further
arguments such as ``ax`` on to ``plot``. matplotlib is imported when a figure is drawn.
"""

from sklearn_sharpbalance.plotting.landscape import LossLandscapeDisplay
from sklearn_sharpbalance.plotting.ood import OODDisplay
from sklearn_sharpbalance.plotting.overlap import subset_overlap
from sklearn_sharpbalance.plotting.reliability import ReliabilityDisplay
from sklearn_sharpbalance.plotting.search import SearchDisplay
from sklearn_sharpbalance.plotting.tradeoff import TradeoffDisplay

__all__ = [
    "LossLandscapeDisplay",
    "OODDisplay",
    "ReliabilityDisplay",
    "SearchDisplay",
    "TradeoffDisplay",
    "subset_overlap",
]
