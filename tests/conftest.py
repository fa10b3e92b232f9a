"""Fixtures that every test may use."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import pytest
import torch

from sklearn_sharpbalance.training.checkpoint import CheckpointFolder

matplotlib.use("Agg")

# Several test processes share the cores: one thread each, in their children too.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


class WithoutKernels:
    """Keeps doctests from importing kernels where Triton is missing.

    A plugin of its own: hooks of this file are heard in its folder only.
    """

    FILES = (
        "_triton_probe.py",
        "convolution_kernel.py",
        "norm_kernels.py",
        "norm_programs.py",
    )

    def pytest_ignore_collect(self, collection_path):
        return True if collection_path.name in self.FILES else None


def pytest_configure(config):
    if find_spec("triton") is None:
        config.pluginmanager.register(WithoutKernels())


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish():
    """Keep the garbage collector from visiting what lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def ctrl_c():
    """Let SIGINT mean Ctrl-C, also in processes that a shell put in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interpreted():
    """Calls ``check`` of a module in a process where Triton interprets its kernels."""
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
def snapshots(tmp_path, monkeypatch):
    """Copies of the checkpoint folder after every write."""
    copies = []
    original = CheckpointFolder.write

    def write(self, *args, **kwargs):
        original(self, *args, **kwargs)
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(self.folder, copies[-1])

    monkeypatch.setattr(CheckpointFolder, "write", write)
    return copies
