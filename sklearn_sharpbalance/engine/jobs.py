"""Members in joblib's jobs: the data are sent once, lost members are sent again."""

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from joblib import effective_n_jobs
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import get_active_backend
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.runtime.threads import torch_threads

__all__ = ["MemberJobs"]

LOSSES_ALLOWED = 3
MAPPED_BYTES = 2**20  # smaller arrays travel with the job
DASK_LOSSES = {"CommClosedError", "FutureCancelledError", "FuturesCancelledError"}


class MemberJobs:
    """Runs a function for many members by whatever backend joblib is set to.

    The network and the data are handed over once for all calls: as they are to threads,
    as memory maps to processes of this machine, scattered to all workers of a dask
    cluster. A worker that dies (killed, out of memory, pre-empted) loses no more than
    the members it was at: these are sent again, to other workers.

    Parameters
    ----------
    n_jobs : int or None, default=None
        As in joblib; 1 is this thread, whatever the backend. A dask cluster decides
        by itself how many it runs at once.
    any_device : bool, default=False
        Whether a worker takes the best device it has in place of the net's.
    threads : int or None, default=None
        Threads of torch in a worker; None is the worker's setting.
    """

    def __init__(self, n_jobs=None, any_device=False, threads=None):
        self.n_jobs, self.any_device, self.threads = n_jobs, any_device, threads
        self._handed: Any = None

    def __getstate__(self):
        """Without what was handed over: it belongs to this process."""
        return self.__dict__ | {"any_device": False, "_handed": None}

    @property
    def parallel(self) -> bool:
        """Whether jobs run elsewhere than in this thread."""
        if self.n_jobs == 1:
            return False
        return _dask_backend() is not None or effective_n_jobs(self.n_jobs) > 1

    def run(self, function: Callable, net, data, calls: list[dict]) -> list:
        """Return ``function(net=net, data=data, **call)`` for every call, in order.

        Parameters
        ----------
        function : callable
            Of a module, so that it can travel by its name.
        net : NeuralNetClassifier
        data : TrainingData
        calls : list of dict
            Further keywords.

        Returns
        -------
        results : list
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
                self._handed = None  # it may have been lost with the worker
                _tell_loss(error, attempt, len(calls) - len(done))
        raise AssertionError("the loop above has no end of its own")

    def _results(self, function, net, data, left) -> Iterator[tuple[int, Any]]:
        """Yield results as they come, so that a loss does not take finished ones."""
        dask = _dask_backend()
        # A future of dask is resolved as an argument of its own only.
        shared = self._hand_over(net, data, dask)
        jobs = [
            {
                "index": i,
                "function": function,
                "shared": shared,
                "call": call,
                "any_device": self.any_device,
                "threads": self.threads,
            }
            for i, call in left.items()
        ]
        if dask is not None:
            yield from _on_dask(dask, jobs)
            return
        streams = getattr(get_active_backend()[0], "supports_return_generator", False)
        run = Parallel(
            n_jobs=self.n_jobs,
            batch_size=1,
            return_as="generator_unordered" if streams else "list",
        )
        yield from run(delayed(_job)(**job) for job in jobs)

    def _hand_over(self, net, data, dask):
        client = None if dask is None else dask.client
        if self._handed is not None:
            *old, shared = self._handed
            if all(a is b for a, b in zip(old, (net, data, client))):
                return shared
        if client is not None:
            # On every worker: what only one of them has is lost with it.
            shared = client.scatter([(net, data)], broadcast=True, hash=False)[0]
        elif getattr(get_active_backend()[0], "supports_sharedmem", False):
            shared = (net, data)  # threads see the same memory
        else:
            folder = tempfile.mkdtemp("-members", dir=os.getenv("JOBLIB_TEMP_FOLDER"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            shared = (net, map_arrays(data, folder))
        self._handed = (net, data, client, shared)
        return shared


def _on_dask(backend, jobs):
    """Results by dask's own means.

    joblib would run a lone job, or all jobs of a cluster that is down to one worker,
    in this process.
    """
    from dask.distributed import as_completed

    options = {"pure": False, **backend.submit_kwargs}  # resources={"GPU": 1}
    futures = [backend.client.submit(_job, **job, **options) for job in jobs]
    with backend.retrieval_context():  # gives the place back if this is a worker
        for future in as_completed(futures):
            yield future.result()


def _job(index, function, shared, call, any_device, threads):
    net, data = shared
    if any_device:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        net = clone(net).set_params(device=device)
    with torch_threads(threads):
        return index, function(net=net, data=data, **call)


def _dask_backend():
    backend = get_active_backend()[0]
    return backend if type(backend).__name__ == "DaskDistributedBackend" else None


def _is_loss(error):
    """Whether a worker died, as opposed to a member that failed."""
    if isinstance(error, TerminatedWorkerError | CancelledError):
        return True
    kind = type(error)
    return kind.__module__.startswith("distributed") and kind.__name__ in DASK_LOSSES


def _tell_loss(error, attempt, n_left):
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


def map_arrays(data, folder):
    """The data with large arrays in files, which processes map instead of copying."""
    if isinstance(data.X, np.ndarray):
        X = _mapped(data.X, folder)
    elif isinstance(data.X, dict):
        X = {key: _mapped(value, folder) for key, value in data.X.items()}
    else:
        X = data.X  # a Dataset travels as it is
    return replace(data, X=X, valid=data.valid and map_arrays(data.valid, folder))


def _mapped(array, folder):
    if array.nbytes < MAPPED_BYTES or _is_mapped(array):
        return array
    try:
        path = os.path.join(folder, f"{len(os.listdir(folder))}.npy")
        np.save(path, array)
    except OSError:
        return array  # no room for a file: joblib sends it in its own way
    return np.load(path, mmap_mode="r")


def _is_mapped(array):
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False
