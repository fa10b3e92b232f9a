"""One skorch net at a time: every feature, and processes through joblib."""

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed

from sklearn_sharpbalance.engine.base import Engine
from sklearn_sharpbalance.members import train_member

__all__ = ["SkorchEngine"]


class SkorchEngine(Engine):
    """Trains each member by skorch's own means.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Members that train at once, as in joblib.
    """

    name = "skorch"

    def __init__(self, n_jobs=None):
        self.n_jobs = n_jobs

    @classmethod
    def refusal(cls, net, data, settings):
        """Never refuses."""
        return None

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train the members one after the other, or in parallel jobs."""
        if effective_n_jobs(self.n_jobs) == 1:
            return [
                train_member(net, state, data, phase, mask, on_epoch)
                for state, mask in zip(states, masks)
            ]
        # Epochs of other processes are not heard: a closure does not travel.
        return Parallel(n_jobs=self.n_jobs)(
            delayed(train_member)(net, state, data, phase, mask)
            for state, mask in zip(states, masks)
        )
