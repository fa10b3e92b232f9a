"""Fits in child processes that are killed without warning."""

import multiprocessing
import os
import resource
import signal
from functools import partial
from pathlib import Path

import numpy as np
import torch
from skorch.callbacks import Callback

from sklearn_sharpbalance import (
    MLP,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)

MB = 10**6


def small_data(n=96):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.5)
    return X, y


def estimator(folder=None, **params):
    """A small ensemble with a warm-up, two selections and a checkpoint an epoch."""
    defaults = {
        "n_estimators": 2,
        "max_epochs": 12,
        "warmup_epochs": 4,
        "reselect_every": 4,
        "batch_size": 16,
        "sam": "friendly_sam",
        "estimator__module__hidden": (8,),
        "random_state": 3,
        "checkpoint_dir": folder,
        "checkpoint_every": 1,
        "device": "cpu",
    }
    return SharpBalanceEnsembleClassifier(**{**defaults, **params})


def joint_estimator(folder=None, **params):
    """Members that are trained together, with a checkpoint an epoch."""
    defaults = {
        "n_estimators": 3,
        "max_epochs": 12,
        "batch_size": 16,
        "estimator__module__hidden": (8,),
        "random_state": 3,
        "checkpoint_dir": folder,
        "checkpoint_every": 1,
        "device": "cpu",
    }
    return DiversifiedEnsembleClassifier(**{**defaults, **params})


class TrainedAlone(MLP):
    """An MLP with dropout that cannot be stacked, because its forward is its own."""

    def __init__(self, n_features, n_classes, hidden=(8,)):
        super().__init__(n_features, n_classes, hidden=hidden, dropout=0.2)

    def forward(self, x):
        return super().forward(x)


# What is killed, by name: functions of modules travel to a child, settings too.
KINDS = {
    "skorch": partial(estimator, engine="skorch"),
    "stacked": partial(estimator, engine="stacked"),
    "sed_stacked": joint_estimator,
    "sed_modules": partial(joint_estimator, estimator=TrainedAlone),
}


def weights(clf):
    """All weights and momenta of an ensemble by name."""
    found = {}
    for i, net in enumerate(getattr(clf, "heads_", clf.estimators_)):
        for key, value in net.module_.state_dict().items():
            found[f"{i}.{key}"] = value.clone()
        for key, entries in net.optimizer_.state_dict()["state"].items():
            for name, value in entries.items():
                found[f"{i}.{key}.{name}"] = torch.as_tensor(value).clone()
    return found


def assert_bitwise(got, want):
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert torch.equal(got[key], value), key


def fit_to_file(kind, folder, path, kill_at_write, params):
    """Run in the child: fit, then leave the weights in a file."""
    torch.set_num_threads(1)
    if kill_at_write is not None:
        _die_while_writing(*kill_at_write)
    torch.save(weights(KINDS[kind](folder, **params).fit(*small_data())), path)


def _die_while_writing(function, count):
    """Kill this process when it calls ``os.function`` for the ``count``-th time."""
    original, calls = getattr(os, function), []

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(os, function, deadly)


def start(kind, folder, path, kill_at_write=None, **params):
    """A new process that fits."""
    args = (kind, str(folder), str(path), kill_at_write, params)
    return start_in_child(fit_to_file, *args)


def start_in_child(function, *args):
    """A new process that shares nothing with this one but imported code."""
    context = multiprocessing.get_context("forkserver")
    # The server imports once and forks; it finds modules by the environment only.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    context.set_forkserver_preload(["tests.training.warm"])
    process = context.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def peak_to_file(prepare, path):
    """Run in the child: bytes at the peak of a run beyond those before it."""
    import psutil

    torch.set_num_threads(1)
    run = prepare()
    before = psutil.Process().memory_info().rss
    run()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(path).write_text(str(peak - before))


def peak_of(prepare, tmp_path, patience=120):
    """Bytes that what ``prepare()`` returns takes, in a process of its own."""
    process = start_in_child(peak_to_file, prepare, str(tmp_path / "peak"))
    process.join(patience)
    assert process.exitcode == 0
    return int((tmp_path / "peak").read_text())


class KillOnce(Callback):
    """Kills the process of a member at the end of an epoch, the first time only."""

    def __init__(self, marker, epoch=2):
        self.marker = marker
        self.epoch = epoch

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == self.epoch:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)
