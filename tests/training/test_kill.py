"""A killed fit resumes in a new process with the same result, bit for bit."""

import os
import random
import signal
import time
from functools import cache
from itertools import product

import pytest
import torch

from sklearn_sharpbalance.runtime.process import torch_threads
from tests.training.killing import KINDS, assert_bitwise, small_data, start, weights

PATIENCE = 120  # seconds until a child process counts as hanging


@cache
def uninterrupted(kind, max_epochs):
    with torch_threads(1):  # as in the process that is killed
        return weights(KINDS[kind](max_epochs=max_epochs).fit(*small_data()))


def finish(process, path):
    process.join(PATIENCE)
    assert process.exitcode == 0
    return torch.load(path)


def length_of_a_fit(tmp_path, kind, max_epochs):
    """Return the seconds of a fit in a child; the first one starts the server."""
    for name in ("first", "second"):
        path = tmp_path / f"{name}.pt"
        begun = time.perf_counter()
        finish(start(kind, tmp_path / name, path, max_epochs=max_epochs), path)
    return time.perf_counter() - begun


@pytest.mark.parametrize(
    ("n_kills", "max_epochs", "kind"),
    [(2, 12, "stacked"), (2, 12, "sed_stacked"), *((20, 24, kind) for kind in KINDS)],
)
@pytest.mark.slow
def test_killed_at_random_moments(n_kills, max_epochs, kind, tmp_path):
    """One fit is killed repeatedly; each process resumes where the last one ended."""
    want = uninterrupted(kind, max_epochs)
    duration, kills, fits = length_of_a_fit(tmp_path, kind, max_epochs), 0, 0
    while kills < n_kills:
        folder, path = tmp_path / f"{fits}", tmp_path / f"{fits}.pt"
        process = start(kind, folder, path, max_epochs=max_epochs)
        process.join(random.uniform(0, duration))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE)
            kills += 1
        else:  # it finished between two kills: start another one
            assert_bitwise(finish(process, path), want)
            fits += 1
    got = finish(start(kind, folder, path, max_epochs=max_epochs), path)
    assert_bitwise(got, want)


WRITES = [("stacked", "fsync", 3)]
ALL_WRITES = product(["stacked", "sed_stacked"], ["fsync", "replace"], [1, 3])


@pytest.mark.parametrize(
    ("kind", "function", "count"),
    [
        pytest.param(*case, marks=() if case in WRITES else pytest.mark.slow)
        for case in ALL_WRITES
    ],
)
def test_killed_while_writing(kind, function, count, tmp_path):
    """Before the content is on the disk, and before the file is renamed."""
    want = uninterrupted(kind, 6)
    folder, path = tmp_path / "checkpoints", tmp_path / "weights.pt"
    process = start(kind, folder, path, (function, count), max_epochs=6)
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    got = finish(start(kind, folder, path, max_epochs=6), path)
    assert_bitwise(got, want)
    kept = [path.name for path in folder.glob("[!.]*")]  # .tmp files go after a day
    assert kept == ["epoch-000006.safetensors"]
