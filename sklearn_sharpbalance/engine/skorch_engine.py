"""One skorch net at a time: every feature, and processes through joblib."""

from sklearn_sharpbalance.engine.base import Engine
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members import train_member

__all__ = ["SkorchEngine"]


class SkorchEngine(Engine):
    """Trains each member by skorch's own means.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Members that train at once, as in joblib, by its backend: processes of this
        machine (loky), or a cluster inside ``joblib.parallel_config(backend="dask")``.
        Members of a worker that dies are trained again elsewhere.

    Attributes
    ----------
    jobs : MemberJobs
        Where members train.
    """

    name = "skorch"

    def __init__(self, n_jobs=None):
        self.jobs = MemberJobs(n_jobs)

    @classmethod
    def refusal(cls, net, data, settings):
        """Never refuses."""
        return None

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train the members one after the other, or in parallel jobs."""
        # Epochs of other processes are not heard: a closure does not travel.
        heard = None if self.jobs.parallel else on_epoch
        each = [(state, phase, mask, heard) for state, mask in zip(states, masks)]
        return self.jobs.run(_train, net, data, each)


def _train(net, data, state, phase, mask, on_epoch):
    return train_member(net, state, data, phase, mask, on_epoch)
