"""Fixtures that every test may use."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

# Several test processes share the cores: more threads each would only get in the way.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


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
