"""The engine that trains each member as a skorch net and supports every feature."""

from sklearn_sharpbalance.engine.base import Engine, EngineRun
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members import train_member

__all__ = ["SkorchEngine"]


class SkorchEngine(Engine):
    """Trains each member as a skorch net.

    Parameters
    ----------
    jobs : MemberJobs or None, default=None
        Runs the training of members; None uses joblib's settings: processes of this
        machine (loky), or a cluster inside ``joblib.parallel_config(backend="dask")``.
        Members of a worker that dies are trained again by another worker.
    """

    name = "skorch"

    def __init__(self, jobs=None):
        super().__init__(jobs or MemberJobs())

    @classmethod
    def refusal(cls, net, data, training):
        """Return None: this engine trains every ensemble."""
        return None

    def open(self, net, members, data):
        """Return a run that restores each member in each segment."""
        return SkorchRun(self.jobs, net, members, data)


class SkorchRun(EngineRun):
    """Members that train one after the other, or in parallel jobs."""

    def __init__(self, jobs, net, members, data):
        super().__init__(net, members, data)
        self.jobs = jobs

    def train(self, segment, masks, on_epoch=None):
        """Train the members one after the other, or in parallel jobs."""
        # Other processes cannot call on_epoch: a closure cannot be pickled.
        on_epoch = None if self.jobs.parallel else on_epoch
        calls = [
            {"state": member, "segment": segment, "mask": mask, "on_epoch": on_epoch}
            for member, mask in zip(self.members, masks)
        ]
        self.members = self.jobs.run(train_member, self.net, self.data, calls)
        return self.members
