"""One skorch net at a time: every feature, and processes through joblib."""

from sklearn_sharpbalance.engine.base import Engine
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members import train_member

__all__ = ["SkorchEngine"]


class SkorchEngine(Engine):
    """Trains each member by skorch's own means.

    Parameters
    ----------
    jobs : MemberJobs or None, default=None
        Where members train; None follows joblib's settings: processes of this machine
        (loky), or a cluster inside ``joblib.parallel_config(backend="dask")``. Members
        of a worker that dies are trained again elsewhere.
    """

    name = "skorch"

    def __init__(self, jobs=None):
        super().__init__(jobs or MemberJobs())

    @classmethod
    def refusal(cls, net, data, training):
        """Never refuses."""
        return None

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train the members one after the other, or in parallel jobs."""
        # Other processes cannot call back: a closure cannot be sent to them.
        callback = None if self.jobs.parallel else on_epoch
        each = [(state, phase, mask, callback) for state, mask in zip(states, masks)]
        return self.jobs.run(_train, net, data, each)


def _train(net, data, state, phase, mask, on_epoch):
    return train_member(net, state, data, phase, mask, on_epoch)
