"""A fit that is killed without warning goes on in a new process, bit for bit."""

import os
import random
import signal
import time

import pytest
import torch

from tests.training.killing import KINDS, assert_bitwise, small_data, start, weights

PATIENCE = 120  # seconds until a child that hangs is given up


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def uninterrupted(kind, **params):
    return weights(KINDS[kind](**params).fit(*small_data()))


def finish(process, path):
    process.join(PATIENCE)
    assert process.exitcode == 0
    return torch.load(path)


def length_of_a_fit(tmp_path, kind):
    """Seconds that a child takes; the first one also waits for the server."""
    for name in ("first", "second"):
        path = tmp_path / f"{name}.pt"
        begun = time.perf_counter()
        finish(start(kind, tmp_path / name, path, max_epochs=24), path)
    return time.perf_counter() - begun


@pytest.mark.parametrize(
    ("n_kills", "kind"),
    [(3, kind) for kind in ("skorch", "stacked", "sed_stacked")]
    + [pytest.param(20, kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_killed_at_random_moments(n_kills, kind, tmp_path):
    """One fit is killed over and over; every process goes on where the last died."""
    want = uninterrupted(kind, max_epochs=24)
    duration, kills, fits = length_of_a_fit(tmp_path, kind), 0, 0
    while kills < n_kills:
        folder, path = tmp_path / f"{fits}", tmp_path / f"{fits}.pt"
        process = start(kind, folder, path, max_epochs=24)
        process.join(random.uniform(0, duration))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE)
            kills += 1
        else:  # it came to its end between two kills: begin another one
            assert_bitwise(finish(process, path), want)
            fits += 1
    got = finish(start(kind, folder, path, max_epochs=24), path)
    assert_bitwise(got, want)


@pytest.mark.parametrize("kind", ["stacked", "sed_stacked"])
@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("count", [1, 6])
def test_killed_while_writing(kind, function, count, tmp_path):
    """Before the bytes are on the disk, and before the file has its name."""
    want = uninterrupted(kind)
    folder, path = tmp_path / "checkpoints", tmp_path / "weights.pt"
    process = start(kind, folder, path, (function, count))
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    got = finish(start(kind, folder, path), path)
    assert_bitwise(got, want)
    assert [p.name for p in folder.iterdir()] == ["epoch-000012.safetensors"]
