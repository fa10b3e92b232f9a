"""Fits in child processes that are killed without warning."""

import multiprocessing
import os
import resource
import signal
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sklearn_sharpbalance import (
    MLP,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.training import plan

MB = 10**6


def small_data(n=96):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.5)
    return X, y


def ensemble(kind, defaults, params):
    """Return an ensemble; the width is a default of perceptrons only."""
    own = params.get("estimator", MLP)
    if not (isinstance(own, type) and issubclass(own, MLP)):
        del defaults["estimator__module__hidden"]
    return kind(**defaults | params)


def estimator(folder=None, **params):
    """Return an ensemble with a warm-up and a selection."""
    defaults = {
        "n_estimators": 2,
        "max_epochs": 12,
        "warmup_epochs": 4,
        "batch_size": 32,
        "sam": "friendly_sam",
        "estimator__module__hidden": (8,),
        "random_state": 3,
        "checkpoint_dir": folder,
        "device": "cpu",
    }
    return ensemble(SharpBalanceEnsembleClassifier, defaults, params)


def joint_estimator(folder=None, **params):
    """Return an ensemble of joint training."""
    defaults = {
        "n_estimators": 3,
        "max_epochs": 12,
        "batch_size": 32,
        "estimator__module__hidden": (8,),
        "random_state": 3,
        "checkpoint_dir": folder,
        "device": "cpu",
    }
    return ensemble(DiversifiedEnsembleClassifier, defaults, params)


class NotStackable(MLP):
    """An MLP with dropout and a custom forward, which is not stacked."""

    def __init__(self, n_features, n_classes, hidden=(8,)):
        super().__init__(n_features, n_classes, hidden=hidden, dropout=0.2)

    def forward(self, x):
        return super().forward(x)


# Ensembles by name; functions of modules can be sent to a child process.
KINDS = {
    "skorch": partial(estimator, engine="skorch"),
    "stacked": partial(estimator, engine="stacked"),
    "sed_stacked": joint_estimator,
    "sed_modules": partial(joint_estimator, estimator=NotStackable),
}


def weights(clf):
    """Return all weights and momenta of an ensemble by name."""
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
    """Fit, and write the weights to a file; runs in the child process."""
    torch.set_num_threads(1)
    plan.SHORTEST_SEGMENT = 1  # many checkpoints
    if kill_at_write is not None:
        _exit_while_writing(*kill_at_write)
    torch.save(weights(KINDS[kind](folder, **params).fit(*small_data())), path)


def _exit_while_writing(function, count):
    """Kill this process in the ``count``-th call of ``os.function``."""
    original, calls = getattr(os, function), []

    def exit_in_call(*args, **kwargs):
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(os, function, exit_in_call)


def start(kind, folder, path, kill_at_write=None, **params):
    """Start a process that fits."""
    args = (kind, str(folder), str(path), kill_at_write, params)
    return start_in_child(fit_to_file, *args)


def start_in_child(function, *args):
    """Start a process that shares only imported code with this one."""
    context = multiprocessing.get_context("forkserver")
    # The server imports once and forks; it finds modules by the environment.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    context.set_forkserver_preload(["tests.training.warm"])
    process = context.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def call_in_child(function, *args, patience=120):
    """Call a function of a module in another process; it must end without error."""
    process = start_in_child(function, *args)
    process.join(patience)
    exitcode = process.exitcode
    process.kill()
    assert exitcode == 0


def peak_to_file(prepare, path):
    """Write the peak memory of a call in bytes; runs in the child process."""
    import psutil

    torch.set_num_threads(1)
    run = prepare()
    before = psutil.Process().memory_info().rss
    run()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path.write_text(str(peak - before))


def peak_of(prepare, tmp_path, patience=120):
    """Return the peak memory of calling what ``prepare()`` returns, in a child."""
    call_in_child(peak_to_file, prepare, tmp_path / "peak", patience=patience)
    return int((tmp_path / "peak").read_text())
