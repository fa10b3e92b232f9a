"""Segments of training for the tests of members."""

from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.members.schedules import constant


def segment(stop, **settings):
    """Return epochs of a balanced phase, the whole training unless told otherwise."""
    defaults = {"name": "balanced", "start": 0, "n_epochs": stop}
    defaults |= {"rho": (0.1,), "lr_schedule": constant}
    return Segment(stop=stop, **defaults | settings)
