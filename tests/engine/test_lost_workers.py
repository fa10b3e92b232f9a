"""Members in other processes give the same result, also if a worker is killed."""

import json
import os
import signal
import time
import uuid
from itertools import accumulate
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.engine.jobs import LOSSES_ALLOWED, MemberJobs
from sklearn_sharpbalance.exceptions import DivergenceError, SharpBalanceWarning


class KillOnce(Callback):
    """Kill the process of a member at the end of an epoch, only once."""

    def __init__(self, marker):
        self.marker = marker

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


class LogEpochs(Callback):
    """Write the time, process and number of threads of each epoch to a file."""

    def __init__(self, folder):
        self.folder = folder

    def on_epoch_begin(self, net, **kwargs):
        self.begun_ = time.time()

    def on_epoch_end(self, net, **kwargs):
        row = [os.getpid(), self.begun_, time.time(), torch.get_num_threads()]
        Path(self.folder, uuid.uuid4().hex).write_text(json.dumps(row))


def most_at_once(rows):
    """Return the largest number of epochs that ran at the same time."""
    moments = [(begun, 1) for _, begun, _, _ in rows]
    moments += [(ended, -1) for _, _, ended, _ in rows]
    return max(accumulate(change for _, change in sorted(moments)))


def small_data(n=96):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)


def estimator(marker, **params):
    return SharpBalanceEnsembleClassifier(
        n_estimators=3,
        max_epochs=4,
        batch_size=32,
        engine="skorch",
        device="cpu",
        estimator__module__hidden=(8,),
        estimator__module__dropout=0.2,
        callbacks=[("kill", KillOnce(str(marker)))],
        random_state=0,
        **params,
    )


@pytest.fixture
def serial(tmp_path):
    """Return the result in this process, and a file that allows one kill."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    marker = tmp_path / "killed"
    marker.touch()
    clf = estimator(marker).fit(*small_data())
    marker.unlink()
    yield clf, marker
    torch.set_num_threads(before)


def assert_same(got, want):
    for a, b in zip(got.estimators_, want.estimators_):
        for key, value in b.module_.state_dict().items():
            assert torch.equal(a.module_.state_dict()[key], value)
    np.testing.assert_array_equal(got.sam_masks_, want.sam_masks_)
    np.testing.assert_array_equal(got.sharpness_, want.sharpness_)


@pytest.mark.slow
def test_a_killed_process_of_this_machine(serial):
    want, marker = serial
    with (
        pytest.warns(SharpBalanceWarning, match=r"A worker died.* are trained again"),
        joblib.parallel_config(n_jobs=2),
    ):
        got = estimator(marker).fit(*small_data())
    assert marker.exists()  # a process was killed
    assert_same(got, want)


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster(serial, tmp_path):
    """Also a search on the same cluster, whose fits submit members."""
    distributed = pytest.importorskip("dask.distributed")
    want, marker = serial
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        silence_logs=50,
    )
    with cluster, distributed.Client(cluster), joblib.parallel_config(backend="dask"):
        got = estimator(marker).fit(*small_data())
        search = GridSearchCV(
            DeepEnsembleClassifier(
                n_estimators=2,
                max_epochs=3,
                engine="skorch",
                callbacks=[("logs", LogEpochs(str(tmp_path)))],
                random_state=0,
            ),
            {"lr": [0.01, 0.1]},
            cv=2,
        ).fit(*small_data())
    assert marker.exists()
    assert_same(got, want)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    # At most one member per worker, none in this process, one thread each.
    rows = [json.loads(p.read_text()) for p in tmp_path.iterdir() if p != marker]
    assert len(rows) == (2 * 2 + 1) * 2 * 3  # fits, members, epochs
    pids = {pid for pid, *_ in rows}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert most_at_once(rows) <= 2
    assert {n_threads for *_, n_threads in rows} == {1}


def test_threads_do_not_mix_their_random_numbers(serial):
    want, marker = serial
    marker.touch()
    before = torch.get_rng_state()
    with joblib.parallel_config(backend="threading", n_jobs=3):
        got = estimator(marker).fit(*small_data())
    assert_same(got, want)
    assert torch.equal(torch.get_rng_state(), before)


# Without processes --------------------------------------------------------------------


class Flaky(MemberJobs):
    """Lose a worker in some calls."""

    parallel = True

    def __init__(self, error, losses, finished_before=1):
        super().__init__()
        self.error, self.losses, self.finished = error, losses, finished_before
        self.sent = []

    def _results(self, function, net, data, left):
        self.sent.append(list(left))
        for n_done, (i, call) in enumerate(left.items()):
            if n_done == self.finished and len(self.sent) <= self.losses:
                raise self.error
            yield i, function(net=net, data=data, **call)


def square(net, data, x):
    return x * x


LOST = TerminatedWorkerError("killed")


def test_only_unfinished_members_are_submitted_again():
    jobs = Flaky(LOST, losses=2)
    with (
        pytest.warns(SharpBalanceWarning, match="3 unfinished members"),
        pytest.warns(SharpBalanceWarning, match="2 unfinished members"),
    ):
        assert jobs.run(square, None, None, [{"x": x} for x in range(4)]) == [
            0,
            1,
            4,
            9,
        ]
    assert jobs.sent == [[0, 1, 2, 3], [1, 2, 3], [2, 3]]


@pytest.mark.filterwarnings("ignore:A worker died")
def test_repeated_losses_raise():
    jobs = Flaky(LOST, losses=99, finished_before=0)
    with pytest.raises(TerminatedWorkerError) as error:
        jobs.run(square, None, None, [{"x": 1}])
    assert "lower n_jobs or batch_size" in error.value.__notes__[0]
    assert len(jobs.sent) == LOSSES_ALLOWED + 1


def test_failed_member_is_not_submitted_again():
    jobs = Flaky(DivergenceError("the loss became nan"), losses=1)
    with pytest.raises(DivergenceError):
        jobs.run(square, None, None, [{"x": 1}, {"x": 2}])
    assert len(jobs.sent) == 1
