"""Fixtures of all tests."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

# The process that distributes the tests imports no libraries.

os.environ["MPLBACKEND"] = "Agg"

# Several test processes share the cores: one thread each, in their children too.
if "PYTEST_XDIST_WORKER" in os.environ:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")
    os.environ["OMP_NUM_THREADS"] = "1"

# Scripts of child processes, without tests or doctests.
collect_ignore = [
    "persistence/other_version.py",
    "runtime/cpu_kernels.py",
    "training/warm.py",
]


class WithoutKernels:
    """Exclude kernels from doctests if Triton is missing.

    A separate plugin, since hooks of this file apply to its folder only.
    """

    FILES = ("_triton_probe.py", "norm_kernels.py", "norm_programs.py")

    def pytest_ignore_collect(self, collection_path):
        return True if collection_path.name in self.FILES else None


def pytest_configure(config):
    if find_spec("triton") is None:
        config.pluginmanager.register(WithoutKernels())
    if config.getoption("dist") == "no":  # the filter imports scikit-learn
        warning = "sklearn.exceptions.DataConversionWarning"
        config.addinivalue_line("filterwarnings", f"error::{warning}")


def pytest_collection():
    gc.disable()  # the objects that tests need while they are imported stay


def pytest_collection_modifyitems(items):
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish():
    """Exclude objects that are never freed from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def ctrl_c():
    """Raise KeyboardInterrupt for SIGINT, also in background processes of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def terminal(monkeypatch):
    """Make rich draw as in a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("rich._console", None)  # rich keeps the first one


@pytest.fixture
def interpreted():
    """Return a function that calls ``check`` in a process with Triton's interpreter."""
    if find_spec("triton") is None:
        pytest.skip("torch came without Triton")

    def run(import_check, *args):
        root = str(Path(__file__).parent.parent)
        child = subprocess.run(
            [sys.executable, "-c", f"{import_check}\ncheck(*{args!r})"],
            env=os.environ | {"TRITON_INTERPRET": "1"},
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-3000:]

    return run


@pytest.fixture
def every_epoch(monkeypatch):
    """Let fits of up to ten epochs write a checkpoint after every epoch."""
    from sklearn_sharpbalance.training import plan

    monkeypatch.setattr(plan, "SHORTEST_SEGMENT", 1)


@contextmanager
def copied_writes(folder):
    """Write after every epoch; yield copies of the checkpoints, one for each write."""
    from sklearn_sharpbalance.training import plan
    from sklearn_sharpbalance.training.checkpoint import CheckpointFolder

    copies, write = [], CheckpointFolder.write

    def write_and_copy(self, *args, **kwargs):
        write(self, *args, **kwargs)
        copies.append(folder / f"copy-{len(copies)}")
        shutil.copytree(self.folder, copies[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointFolder, "write", write_and_copy)
        patch.setattr(plan, "SHORTEST_SEGMENT", 1)
        yield copies


@pytest.fixture
def snapshots(tmp_path):
    """Return copies of the checkpoint folder, one after every write."""
    with copied_writes(tmp_path) as copies:
        yield copies
