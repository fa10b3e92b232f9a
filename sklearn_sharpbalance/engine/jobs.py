"""Run members as jobs of joblib; repeat jobs whose worker died."""

import operator
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from itertools import count
from typing import Any

import torch
from joblib import effective_n_jobs
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import get_active_backend
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.runtime.process import WITHOUT_COMPILER_IMPORT, torch_threads

__all__ = ["MemberJobs"]

LOSSES_ALLOWED = 3
MAPPED_BYTES = 2**20  # joblib sends smaller arrays with the job, and maps others
DASK_LOSSES = {"CommClosedError", "FutureCancelledError", "FuturesCancelledError"}


class MemberJobs:
    """Runs a function for many members with the active backend of joblib.

    Members share net and data: threads use the same objects, processes of this machine
    memory maps of large arrays, workers of a dask cluster scattered copies.
    If a worker dies (killed, out of memory, pre-empted), only its unfinished members
    are repeated, by other workers.

    Parameters
    ----------
    n_jobs : int or None, default=None
        As in joblib; 1 is this thread with every backend. A dask cluster chooses the
        number of parallel jobs itself.
    any_device : bool, default=False
        Whether a worker uses its best device instead of the net's.
    threads : int or None, default=None
        Threads of torch in a worker; None is the worker's setting.
    """

    def __init__(self, n_jobs=None, any_device=False, threads=None):
        self.n_jobs, self.any_device, self.threads = n_jobs, any_device, threads
        # Client, net and data of the last call on a cluster, and their future.
        self._scattered: tuple = (None, None, None, None)

    def __getstate__(self):
        """Return the attributes without objects that belong to this process."""
        own = {"any_device": False, "_scattered": (None, None, None, None)}
        return self.__dict__ | own

    @property
    def parallel(self) -> bool:
        """Whether jobs run outside of this thread."""
        if self.n_jobs == 1:
            return False
        return _dask_backend() is not None or effective_n_jobs(self.n_jobs) > 1

    def run(self, function: Callable, net, data, calls: list[dict]) -> list:
        """Return ``function(net=net, data=data, **call)`` for every call, in order.

        It is a function of a module, so that it can be pickled.
        """
        if not self.parallel:
            return [function(net=net, data=data, **call) for call in calls]
        done: dict[int, Any] = {}
        for attempt in count(1):
            left = {i: call for i, call in enumerate(calls) if i not in done}
            try:
                for i, result in self._results(function, net, data, left):
                    done[i] = result
                return [done[i] for i in range(len(calls))]
            except Exception as error:
                if not _is_loss(error):
                    raise
                self._scattered = (None, None, None, None)  # may have been lost, too
                _warn_of_loss(error, attempt, len(calls) - len(done))
        raise AssertionError("the loop above ends by return or raise")

    def _results(self, function, net, data, left) -> Iterator[tuple[int, Any]]:
        """Yield results in the order of completion; they survive a later loss."""
        dask = _dask_backend()
        # dask resolves a future only if it is itself an argument.
        shared = (net, data) if dask is None else self._scatter(dask.client, net, data)
        common = {"function": function, "shared": shared}
        common |= {"any_device": self.any_device, "threads": self.threads}
        jobs = [{"index": i, "call": call, **common} for i, call in left.items()]
        if dask is not None:
            yield from _on_dask(dask, jobs)
            return
        streams = getattr(get_active_backend()[0], "supports_return_generator", False)
        run = Parallel(
            n_jobs=self.n_jobs,
            batch_size=1,
            max_nbytes=MAPPED_BYTES,
            return_as="generator_unordered" if streams else "list",
        )
        yield from run(delayed(_job)(**job) for job in jobs)

    def _scatter(self, client, net, data):
        """Return a future of net and data on all workers; repeated calls reuse it."""
        *sources, future = self._scattered
        if not all(map(operator.is_, sources, (client, net, data))):
            # On every worker: a copy on one worker only would be lost with it.
            future = client.scatter([(net, data)], broadcast=True, hash=False)[0]
            self._scattered = (client, net, data, future)
        return future


def _on_dask(backend, jobs):
    """Yield the results of jobs that are submitted to dask directly.

    joblib would run a single job, or all jobs of a cluster with one worker left, in
    this process.
    """
    from dask.distributed import as_completed

    options = {"pure": False, **backend.submit_kwargs}  # resources={"GPU": 1}
    futures = [backend.client.submit(_job, **job, **options) for job in jobs]
    with backend.retrieval_context():  # frees this worker's slot if this is one
        for future in as_completed(futures):
            yield future.result()


def _job(index, function, shared, call, any_device, threads):
    net, data = shared
    if any_device:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        net = clone(net).set_params(device=device)
    with torch_threads(threads), WITHOUT_COMPILER_IMPORT:
        return index, function(net=net, data=data, **call)


def _dask_backend():
    backend = get_active_backend()[0]
    return backend if type(backend).__name__ == "DaskDistributedBackend" else None


def _is_loss(error):
    """Whether a worker died; False if the training of a member failed."""
    if isinstance(error, TerminatedWorkerError | CancelledError):
        return True
    kind = type(error)
    return kind.__module__.startswith("distributed") and kind.__name__ in DASK_LOSSES


def _warn_of_loss(error, attempt, n_left):
    """Warn that jobs are repeated; raise the error after too many losses."""
    if attempt > LOSSES_ALLOWED:
        error.add_note(
            f"Workers died {attempt} times while {n_left} members were training. If "
            "they ran out of memory, lower n_jobs or batch_size."
        )
        raise error
    warnings.warn(
        f"A worker died ({type(error).__name__}); {n_left} unfinished members are "
        f"trained again, attempt {attempt} of {LOSSES_ALLOWED}.",
        SharpBalanceWarning,
        stacklevel=4,
    )
