"""Files and pickles of one version of torch open in another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OTHER = os.environ.get("SHARPBALANCE_OTHER_PYTHON")
ROOT = Path(__file__).parents[2]


def run(python, what, folder):
    command = [python, "-W", "ignore", "-m", "tests.persistence.other_version", what]
    done = subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    OTHER is None,
    reason="SHARPBALANCE_OTHER_PYTHON names no interpreter with another torch",
)
@pytest.mark.parametrize("direction", ["from_here", "to_here"])
def test_models_open_in_another_version_of_torch(direction, tmp_path):
    writer, reader = (sys.executable, OTHER)[:: 1 if direction == "from_here" else -1]
    run(writer, "write", tmp_path)
    assert " read by " in run(reader, "read", tmp_path)
